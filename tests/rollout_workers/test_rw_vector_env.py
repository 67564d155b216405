"""The base class of envs that step their own sub-envs."""

import gymnasium as gym
import pytest

from swath.rollout_workers import VectorEnv

ONE, TWO = gym.spaces.Discrete(1), gym.spaces.Discrete(2)


class Closing:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_a_vector_env_says_what_its_sub_envs_are_like():
    env = VectorEnv(ONE, TWO, 3)
    assert (env.observation_space, env.action_space, env.num_envs) == (ONE, TWO, 3)
    assert env.get_sub_environments() == []
    assert not hasattr(env, "seed")
    env.close()


@pytest.mark.parametrize("number", [0, -1, 1.5, None])
def test_a_number_of_sub_envs_that_is_none_is_refused(number):
    with pytest.raises(ValueError, match="num_envs"):
        VectorEnv(ONE, TWO, number)


@pytest.mark.parametrize(
    ("method", "arguments"), [("vector_reset", ()), ("reset_at", (0,)), ("vector_step", ([0],)), ("restart_at", (0,))]
)
def test_what_a_class_leaves_out_is_told_by_name(method, arguments):
    class Mine(VectorEnv):
        pass

    with pytest.raises(NotImplementedError, match=f"Mine has no {method}"):
        getattr(Mine(ONE, TWO, 1), method)(*arguments)


def test_sub_envs_are_closed_once_however_often_they_are_listed():
    first, second = Closing(), Closing()

    class Mine(VectorEnv):
        def get_sub_environments(self):
            return [first, second, first]

    Mine(ONE, TWO, 3).close()
    assert (first.closed, second.closed) == (1, 1)
