"""Vector envs: what their base class says, and what becomes of rows when one raises, which fails as a whole."""

from typing import Any

import gymnasium as gym
import pytest
from rw_toys import Foreseen, made_of

from mock_envs import VectorizedMockEnv
from swath.rollout_workers import VectorEnv
from swath.rollout_workers.policy import RandomPolicy
from swath.testing.counting import Counting, CountingEnv, Script

B, F = 3, 4
ONE, TWO = gym.spaces.Discrete(1), gym.spaces.Discrete(2)
SETTINGS = {"num_envs_per_env_runner": B, "rollout_fragment_length": F, "delay_between_sub_environment_restarts_s": 0.0}


class Breaking(VectorizedMockEnv):
    """Raises where it is told to: at a step, or at the reset of a sub-env."""

    made: list[Any] = []

    def __init__(self, at_step: int = 0, at_reset: int = 0) -> None:
        super().__init__(3, B)
        self.left, self.resets_left, self.closed, self.restarted = at_step, at_reset, False, list[int]()
        Breaking.made.append(self)

    def vector_step(self, actions: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise LookupError("the vector env broke")
        return super().vector_step(actions)

    def reset_at(self, index: int | None = None, **kwargs: Any) -> Any:
        self.resets_left -= 1
        if self.resets_left == 0:
            raise LookupError(f"sub-env {index} cannot be reset")
        return super().reset_at(index, **kwargs)

    def restart_at(self, index: int | None = None) -> None:
        self.restarted.append(index or 0)
        super().restart_at(index)

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def _forget() -> None:
    Breaking.made.clear()


@pytest.mark.parametrize("step", [2, F + 2])
def test_every_episode_of_a_vector_env_that_raises_ends_and_it_is_reset(step: int):
    with made_of(lambda: Breaking(step), RandomPolicy, **SETTINGS) as worker:
        batches = [worker.sample()] if step > F else []
        with pytest.raises(LookupError, match="the vector env broke"):
            worker.sample()
        batches += [worker.sample(), worker.sample()]
        assert worker.counters["episodes_faulty"] == B
    assert [len(batch) for batch in batches] == [B * F] * len(batches)
    assert len(Breaking.made) == 1


def test_with_restart_it_is_built_anew_and_one_that_cannot_be_reset_is_restarted_alone():
    settings, plans = {**SETTINGS, "restart_failed_sub_environments": True}, iter([(2, 0), (0, 2), (0, 0)])
    with made_of(lambda: Breaking(*next(plans)), RandomPolicy, **settings) as worker:
        assert [len(worker.sample()) for _ in range(3)] == [B * F] * 3
        assert worker.env is Breaking.made[1]
    assert [(env.closed, env.restarted) for env in Breaking.made] == [(True, []), (True, [1])]


def test_without_it_is_reset_by_the_next_call():
    with made_of(lambda: Breaking(0, 2), RandomPolicy, **SETTINGS) as worker:
        with pytest.raises(LookupError, match="sub-env 1 cannot be reset"):
            worker.sample()
        assert worker.sample()["t"].tolist() == [0, 1, 2, 0] * B


class BrokenOnce(CountingEnv):
    """Raises at one reset, or one step, of the first that is made."""

    at: list[str] = []

    def reset(self, **kwargs: Any) -> Any:
        if self.mark.episode == 0 and "reset" in BrokenOnce.at:
            BrokenOnce.at.remove("reset")
            raise LookupError("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
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


class Closing:
    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_the_base_class_names_what_is_left_out_and_closes_each_sub_env_once():
    env = VectorEnv(ONE, TWO, 3)
    assert (env.observation_space, env.action_space, env.num_envs, env.get_sub_environments()) == (ONE, TWO, 3, [])
    calls = [("vector_reset", ()), ("reset_at", (0,)), ("vector_step", ([0],)), ("restart_at", (0,))]
    for method, arguments in calls:
        with pytest.raises(NotImplementedError, match=f"VectorEnv has no {method}"):
            getattr(env, method)(*arguments)
    for number in (0, 1.5, None):
        with pytest.raises(ValueError, match="num_envs"):
            VectorEnv(ONE, TWO, number)
    one = Closing()
    env.get_sub_environments = lambda: [one, one]
    env.close()
    assert one.closed == 1
