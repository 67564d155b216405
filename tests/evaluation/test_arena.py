"""From an env in any form to slots."""

import gymnasium as gym
import pytest
from evaluation_toys import CoinEnv
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from swath.evaluation.arena import SettingRequest, make_host


class OtherSpaces(CoinEnv):
    action_space = spaces.Discrete(3)


def coins(n):
    return SyncVectorEnv([CoinEnv] * n)


@pytest.mark.parametrize(
    ("env", "num_envs", "error", "says"),
    [
        (CoinEnv(), 2, ValueError, "num_envs=2 for .*which has 1 already"),
        (coins(3), 2, ValueError, "num_envs=2 for .*which has 3 already"),
        (lambda: coins(3), 2, ValueError, "num_envs=2 for .*batched already"),
        (CoinEnv, 0, ValueError, "num_envs=0 must be at least 1"),
        (CoinEnv, 1.5, ValueError, "num_envs=1.5"),
        ([], None, ValueError, "empty list"),
        ([CoinEnv, CoinEnv()], None, ValueError, "make it one kind"),
        ([CoinEnv, CoinEnv], 3, ValueError, "must be a multiple of 2"),
        ([CoinEnv(), CoinEnv()], 4, ValueError, "must be 2, or None"),
        ([CoinEnv, OtherSpaces], None, ValueError, "agree in their spaces"),
        ([lambda: coins(2)], None, TypeError, "a list takes single envs"),
        (3, None, TypeError, "an env source is of type int"),
        (lambda: None, None, TypeError, "returned None"),
        ("NoSuchEnv-v0", None, gym.error.NameNotFound, "NoSuchEnv"),
    ],
)
def test_what_cannot_be_meant_is_refused(env, num_envs, error, says):
    with pytest.raises(error, match=says):
        make_host(SettingRequest(env, num_envs))


def test_what_was_built_is_closed_if_a_later_one_fails():
    built = []

    def make():
        built.append(CoinEnv())
        return built[-1]

    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make_host(SettingRequest([make, fail], None))
    assert [env.closed for env in built] == [True]
