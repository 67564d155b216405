"""What becomes of rows when a sub-env, a policy or a callback raises: sizes are exact, the others go on."""

from __future__ import annotations

from typing import Any

import pytest
from sampling_toys import Foreseen, counting_worker, waiting_steps

from swath.rollout_workers import DefaultCallbacks, RolloutMetrics
from swath.testing.counting import Counting, Script
from swath.testing.faults import EnvBroke, Fault

B, F = 3, 4


def marks(batch: Any) -> list[tuple[int, int, int]]:
    """Env, episode and step of each row's observation."""
    return [tuple(int(part) for part in row) for row in batch["obs"]]


def rows_of(batch: Any, env: int) -> list[tuple[int, int]]:
    """Episode and step of an env's rows."""
    return [(episode, step) for number, episode, step in marks(batch) if number == env]


def test_whole_episodes_are_handed_out_without_that_of_the_env_that_failed():
    counting = Counting(script=Script((5,), ("terminated",)))
    worker, _ = counting_worker(counting, {1: [Fault("raise", step=4)]}, batch_mode="complete_episodes")
    with worker:
        with pytest.raises(EnvBroke):
            worker.sample()
        batch = worker.sample()
        counters = worker.counters
    ends = batch["terminateds"]
    assert rows_of(batch, 0) == [(0, t) for t in range(5)] + [(1, t) for t in range(len(rows_of(batch, 0)) - 5)]
    assert all(episode == 1 for episode, _ in rows_of(batch, 1)), "the rows before the failure are discarded"
    assert ends.sum() * 5 == len(batch) >= B * F
    assert counters["env_steps_discarded"] == 3


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


def test_what_a_failed_step_seems_to_observe_is_not_pushed_into_the_filter():
    worker, factory = counting_worker(
        faults={1: [Fault("raise", step=2)]}, restart_failed_sub_environments=True, observation_filter="MeanStdFilter"
    )
    with worker:
        batches = [worker.sample() for _ in range(3)]
        pushed, waiting = worker.filters["default_policy"].rs.n, waiting_steps(worker)
    resets = sum(len(env.seeds) for env in factory.made)
    assert pushed == sum(map(len, batches)) + waiting + resets


class Watching(DefaultCallbacks):
    """Notes how episodes end."""

    ended: tuple[Any, ...] = ()

    def on_episode_end(self, *, episode: Any, env_index: int, **_: Any):  # type: ignore[override]
        """Note what came."""
        Watching.ended += ((env_index, episode),)


def test_callbacks_get_the_exception_in_the_place_of_the_episode():
    Watching.ended = ()
    worker, _ = counting_worker(faults={1: [Fault("raise", step=2)]}, callbacks_class=Watching)
    with worker:
        with pytest.raises(EnvBroke):
            worker.sample()
        told = worker.get_metrics()
    assert [(env, type(episode)) for env, episode in Watching.ended] == [(1, EnvBroke)]
    assert told == [RolloutMetrics(episode_faulty=True, env_index=1, error=told[0].error)]
    assert "EnvBroke" in told[0].error


class Wrong(Foreseen):
    """Answers something else the second time."""

    answer: Any = None

    def compute_actions(self, obs_batch: Any, state_batches: Any = None, **kwargs: Any) -> Any:
        """Wrong once."""
        actions, states, extra = super().compute_actions(obs_batch, state_batches, **kwargs)
        return Wrong.answer(actions, states, extra) if len(self.asked) == 2 else (actions, states, extra)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda a, s, e: (a[:2], s, e), r"actions of shape \(2,\); wanted"),
        (lambda a, s, e: (a, s, {}), "before they were"),
        (lambda a, s, e: (a, s, {"twice": e["twice"][:, None]}), "before they were"),
        (lambda a, s, e: (a, s, {"twice": e["twice"][:1]}), r"to 3 observations; before they were"),
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
        assert marks(worker.sample()) == [(env, 0, t) for env in range(B) for t in range(F)]


def test_an_env_that_raises_when_it_is_closed_is_warned_of():
    worker, factory = counting_worker(faults={1: [Fault("raise_at_close")]})
    with pytest.warns(UserWarning, match="raised when it was closed"):
        worker.stop()
    assert [env.closed for env in factory.made] == [1] * B


def test_an_episode_that_is_handed_out_whole_and_does_not_end_is_warned_of_once():
    counting = Counting(script=Script((5_003,)))
    settings = {"batch_mode": "complete_episodes", "num_envs_per_env_runner": 1, "rollout_fragment_length": 1}
    worker, _ = counting_worker(counting, **settings)
    with worker, pytest.warns(UserWarning, match="sub-env 0 has lasted") as warned:
        assert len(worker.sample()) == 5_003
    assert len(warned) == 1
