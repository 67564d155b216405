"""What becomes of rows when a vector env raises: it steps as a whole, and fails as a whole."""

from typing import Any

import gymnasium as gym
import pytest
from sampling_toys import Foreseen, made_of

from mock_envs import VectorizedMockEnv
from swath.rollout_workers.policy import RandomPolicy
from swath.testing.counting import Counting, CountingEnv, Script

B, F = 3, 4
SETTINGS = {"num_envs_per_env_runner": B, "rollout_fragment_length": F, "delay_between_sub_environment_restarts_s": 0.0}


class Breaking(VectorizedMockEnv):
    """Raises where it is told to: at a step, or at the reset of a sub-env."""

    made: list[Any] = []

    def __init__(self, at_step: int = 0, at_reset: int = 0) -> None:
        super().__init__(3, B)
        self.left, self.resets_left, self.closed, self.restarted = at_step, at_reset, False, list[int]()
        Breaking.made.append(self)

    def vector_step(self, actions: Any) -> Any:
        """Raise once."""
        self.left -= 1
        if self.left == 0:
            raise LookupError("the vector env broke")
        return super().vector_step(actions)

    def reset_at(self, index: int | None = None, **kwargs: Any) -> Any:
        """Raise once."""
        self.resets_left -= 1
        if self.resets_left == 0:
            raise LookupError(f"sub-env {index} cannot be reset")
        return super().reset_at(index, **kwargs)

    def restart_at(self, index: int | None = None) -> None:
        """Note it."""
        self.restarted.append(index or 0)
        super().restart_at(index)

    def close(self) -> None:
        """Note it."""
        self.closed = True


@pytest.fixture(autouse=True)
def _forget() -> None:
    Breaking.made.clear()


@pytest.mark.parametrize("step", [1, 2, F + 2])
def test_every_episode_of_a_vector_env_that_raises_ends_and_it_is_reset(step: int):
    with made_of(lambda: Breaking(step), RandomPolicy, **SETTINGS) as worker:
        batches = [worker.sample()] if step > F else []
        with pytest.raises(LookupError, match="the vector env broke"):
            worker.sample()
        batches += [worker.sample(), worker.sample()]
        assert worker.counters["episodes_faulty"] == B
    assert [len(batch) for batch in batches] == [B * F] * len(batches)
    assert len(Breaking.made) == 1


def test_with_restart_it_is_built_anew_and_collection_goes_on():
    left = [2, 0]
    settings = {**SETTINGS, "restart_failed_sub_environments": True}
    with made_of(lambda: Breaking(left.pop(0)), RandomPolicy, **settings) as worker:
        assert [len(worker.sample()) for _ in range(3)] == [B * F] * 3
        assert worker.env is Breaking.made[1]
    assert [env.closed for env in Breaking.made] == [True, True]


def test_a_sub_env_that_cannot_be_reset_is_restarted_alone():
    settings = {**SETTINGS, "restart_failed_sub_environments": True}
    with made_of(lambda: Breaking(0, 2), RandomPolicy, **settings) as worker:
        assert [len(worker.sample()) for _ in range(3)] == [B * F] * 3
        assert worker.counters["sub_env_restarts"] == 1
    assert [env.restarted for env in Breaking.made] == [[1]]


def test_a_sub_env_that_cannot_be_reset_is_reset_by_the_next_call():
    with made_of(lambda: Breaking(0, 2), RandomPolicy, **SETTINGS) as worker:
        with pytest.raises(LookupError, match="sub-env 1 cannot be reset"):
            worker.sample()
        batch = worker.sample()
    assert batch["t"].tolist() == [0, 1, 2, 0] * B


class BrokenOnce(CountingEnv):
    """Raises at one reset, or one step, of the first that is made."""

    at: list[str] = []

    def reset(self, **kwargs: Any) -> Any:
        """Raise once, at the second episode."""
        if self.mark.episode == 0 and "reset" in BrokenOnce.at:
            BrokenOnce.at.remove("reset")
            raise LookupError("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        """Raise once, at the second step."""
        if self.mark.step == 1 and "step" in BrokenOnce.at:
            BrokenOnce.at.remove("step")
            raise LookupError("step")
        return super().step(action)


@pytest.mark.parametrize("mode", list(gym.vector.AutoresetMode))
@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize("restart", [False, True])
def test_gymnasiums_vector_envs_go_on_after_a_failure(mode: Any, where: str, restart: bool):
    BrokenOnce.at[:] = [where]
    counting = Counting(script=Script((3, 5, 1)))

    def make() -> Any:
        numbers = iter(range(B))
        return gym.vector.SyncVectorEnv([lambda: BrokenOnce(next(numbers), counting)] * B, autoreset_mode=mode)

    with made_of(make, Foreseen, **SETTINGS, restart_failed_sub_environments=restart) as worker:
        batches = []
        if not restart:
            with pytest.raises(LookupError, match=where):
                worker.sample()
        batches = [worker.sample() for _ in range(4)]
        faulty = worker.counters["episodes_faulty"]
    assert BrokenOnce.at == []
    in_a_reset_alone = where == "reset" and mode is gym.vector.AutoresetMode.DISABLED
    assert faulty == (1 if in_a_reset_alone else B), "a step fails for all, as a reset within one does"
    for batch in batches:
        assert len(batch) == B * F
        assert batch["t"].tolist() == batch["obs"][:, 2].tolist()


def test_one_that_returns_no_lists_is_told_what_it_must_return():
    class Short(VectorizedMockEnv):
        def vector_step(self, actions: Any) -> Any:
            return (*super().vector_step(actions)[:4], None)

    with made_of(lambda: Short(3, B), RandomPolicy, **SETTINGS) as worker, pytest.raises(TypeError) as caught:
        worker.sample()
    assert "; a VectorEnv has vector_step(actions) ->" in str(caught.value)
