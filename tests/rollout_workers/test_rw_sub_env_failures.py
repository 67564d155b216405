"""What becomes of rows when a sub-env, a policy or a callback raises: sizes are exact, the others go on."""

from typing import Any

import pytest
from rw_toys import Foreseen, counting_worker

from swath.testing.counting import Counting, Script
from swath.testing.faults import EnvBroke, Fault

B, F = 3, 4


def test_whole_episodes_are_handed_out_without_that_of_the_env_that_failed():
    counting = Counting(script=Script((5,), ("terminated",)))
    worker, _ = counting_worker(counting, {1: [Fault("raise", step=4)]}, batch_mode="complete_episodes")
    with worker:
        with pytest.raises(EnvBroke):
            worker.sample()
        batch = worker.sample()
        assert worker.counters["env_steps_discarded"] == 3
    starts = batch["obs"][batch["t"] == 0][:, :2].tolist()
    assert ([0, 0] in starts, [1, 0] in starts, [1, 1] in starts) == (True, False, True)
    assert batch["terminateds"].sum() * 5 == len(batch) >= B * F


def test_an_env_that_never_can_be_reset_ends_in_its_own_exception_at_the_limit():
    faults = {n: [Fault("raise_at_reset", times=99)] for n in range(1, 40)}
    worker, factory = counting_worker(
        faults=faults,
        num_envs_per_env_runner=1,
        restart_failed_sub_environments=True,
        max_num_sub_environment_restarts=3,
    )
    factory.faults[0] = []
    with worker:
        worker.sample()
        first = factory.made[0]
        first._mishaps = type(first._mishaps)([Fault("raise", step=F + 1)])
        with pytest.raises(EnvBroke) as caught:
            worker.sample()
    assert len(factory.made) == 1 + 3
    assert any("max_num_sub_environment_restarts=3" in note for note in caught.value.__notes__)


def test_a_good_step_between_two_failures_starts_the_count_anew():
    faults = {1: [Fault("raise", step=2)], B: [Fault("raise", step=2)], B + 1: [Fault("raise", step=2)]}
    worker, factory = counting_worker(
        faults=faults, restart_failed_sub_environments=True, max_num_sub_environment_restarts=1
    )
    with worker:
        assert [len(worker.sample()) for _ in range(4)] == [B * F] * 4
    assert len(factory.made) == B + 3


def test_waiting_before_an_env_is_made_anew_doubles_up_to_five_seconds():
    waited: list[float] = []
    worker, _ = counting_worker(
        faults={0: [Fault("raise")], **{n: [Fault("raise_at_reset")] for n in range(1, 8)}},
        num_envs_per_env_runner=1,
        restart_failed_sub_environments=True,
        max_num_sub_environment_restarts=8,
        delay_between_sub_environment_restarts_s=0.1,
    )
    worker.envs.failures.wait = waited.append
    with worker:
        worker.sample()
    assert waited == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])


class Wrong(Foreseen):
    """Answers something else the second time."""

    answer: Any = None

    def compute_actions(self, obs_batch: Any, state_batches: Any = None, **kwargs: Any) -> Any:
        actions, states, extra = super().compute_actions(obs_batch, state_batches, **kwargs)
        return Wrong.answer(actions, states, extra) if len(self.asked) == 2 else (actions, states, extra)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda a, s, e: (a[:2], s, e), r"actions of shape \(2,\); wanted"),
        (lambda a, s, e: (a, s, {}), "before they were"),
        (lambda a, s, e: (a, s, {"twice": e["twice"][:1]}), "other lengths to 3 observations"),
        (lambda a, s, e: (a, [a], e), "answered 1 states"),
    ],
)
def test_an_answer_of_another_form_is_refused_before_anything_is_stepped(answer: Any, said: str):
    Wrong.answer = answer
    worker, factory = counting_worker(policy=Wrong)
    with worker:
        with pytest.raises(ValueError, match=said):
            worker.sample()
        assert [env.mark.step for env in factory.made] == [1] * B
        assert worker.sample()["obs"].tolist() == [[env, 0, t] for env in range(B) for t in range(F)]


def test_an_episode_that_is_handed_out_whole_and_does_not_end_is_warned_of_once():
    counting = Counting(script=Script((5_003,)))
    settings = {"batch_mode": "complete_episodes", "num_envs_per_env_runner": 1, "rollout_fragment_length": 1}
    worker, _ = counting_worker(counting, **settings)
    with worker, pytest.warns(UserWarning, match="sub-env 0 has lasted") as warned:
        assert len(worker.sample()) == 5_003
    assert len(warned) == 1
