import pytest
from tensordict import TensorDict

from swath.bench import Rounds, Setting, Subject, measure

AT_ONCE = Rounds(count=2, seconds=0.0)
SETTINGS = [Setting("inline", 1, 2), Setting("inline", 1, 4), Setting("thread", 2, 2)]


def test_settings_take_turns_each_round_from_another_one_on():
    turns = []
    scores = measure(Subject("CartPole-v1", frames=32), SETTINGS, AT_ONCE, lambda *turn: turns.append(turn))
    assert turns == [(n, SETTINGS[at]) for n, at in enumerate([0, 1, 2, 1, 2, 0])]
    assert [score.setting for score in scores] == SETTINGS
    assert all(len(score.rates) == 2 and min(score.rates) > 0 for score in scores)


def test_every_turn_has_collectors_of_its_own_setting(monkeypatch):
    seen = []
    build = Subject.collector

    def watched(self, setting):
        collector = build(self, setting)
        seen.append((setting, type(collector).__name__))
        return collector

    monkeypatch.setattr(Subject, "collector", watched)
    measure(Subject("CartPole-v1", frames=32), SETTINGS, Rounds(1, 0.0))
    assert seen == list(zip(SETTINGS, ["Collector", "Collector", "MultiSyncCollector"], strict=True))


def test_a_setting_that_fails_is_told_and_the_others_go_on():
    import gymnasium as gym

    def make():
        if builds and builds.pop():
            raise FileNotFoundError("level1.map")
        return gym.make("CartPole-v1")

    builds = [False, False, True]  # the last is first
    scores = measure(Subject(make, frames=32), SETTINGS[:2], AT_ONCE)
    assert scores[0].rates == ()
    assert scores[0].failure.startswith("FileNotFoundError: level1.map")
    assert len(scores[1].rates) == 2


def test_a_policy_acts_wherever_workers_live():
    def policy(observation):
        return (observation[..., 2] > 0).long()

    scores = measure(Subject("CartPole-v1", policy, frames=32), SETTINGS, Rounds(1, 0.0))
    assert [score.failure for score in scores] == ["", "", ""]


class Drawn:
    """A collector that counts what is asked of it; the second batch may raise."""

    def __init__(self, raises):
        self.raises, self.batches, self.shut = raises, 0, 0

    def __iter__(self):
        while True:
            self.batches += 1
            if self.raises and self.batches == 2:
                raise FloatingPointError("diverged")
            yield TensorDict(batch_size=[8])

    def shutdown(self):
        self.shut += 1


def test_a_turn_draws_a_batch_to_warm_up_and_ends_with_a_shutdown(monkeypatch):
    made = []
    monkeypatch.setattr(Subject, "collector", lambda self, setting: made.append(Drawn(raises=False)) or made[-1])
    measure(Subject("CartPole-v1"), SETTINGS[:1], AT_ONCE)
    assert [(one.batches, one.shut) for one in made] == [(2, 1), (2, 1)]


def test_a_setting_that_failed_has_no_further_turn(monkeypatch):
    made = []
    monkeypatch.setattr(Subject, "collector", lambda self, setting: made.append(Drawn(raises=True)) or made[-1])
    (score,) = measure(Subject("CartPole-v1"), SETTINGS[:1], AT_ONCE)
    assert (score.rates, score.failure) == ((), "FloatingPointError: diverged")
    assert [(one.batches, one.shut) for one in made] == [(2, 1)]


@pytest.mark.parametrize("wrong", [{"count": 0}, {"seconds": -1.0}])
def test_rounds_are_checked_where_they_are_built(wrong):
    with pytest.raises(ValueError, match="must be"):
        Rounds(**wrong)
