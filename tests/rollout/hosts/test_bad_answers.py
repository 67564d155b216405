"""Envs that violate their API: the error names the env, the bad value and the API."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from swath import Collector, evaluate_policy
from swath.errors import BadAnswer
from swath.rollout.hosts.base import EnvRaised
from swath.rollout.hosts.gymnasium import EnvListHost

ROW, ITS_SPACE = np.zeros(2, np.float32), "its observation space is Box(-1.0, 1.0, (2,), float32)"


class Answering(gym.Env):
    """An env that returns its class attributes."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    at_reset, at_step = (ROW, {}), (ROW, 0.0, False, False, {})

    def reset(self, *, seed=None, options=None):
        return self.at_reset

    def step(self, action):
        return self.at_step


def answering(**answers):
    return type("Answers", (Answering,), answers)()


def failure_of(env):
    """Return the error of the second of two envs in its first reset, or else in its first step."""
    host = EnvListHost([Answering(), env])
    try:
        host.reset_all()
    except EnvRaised as raised:
        return {raised.env: raised.cause}[1]
    return dict(host.step([np.zeros(2, np.int64)]).failed)[1]


@pytest.mark.parametrize(
    ("at_step", "message"),
    [
        ((ROW, 0.0, False, {}), "not enough values to unpack (expected 5, got 4)"),
        (None, "cannot unpack non-iterable NoneType object"),
        ((ROW, "1", False, False, {}), "the env returned the reward '1'; it must be one number"),
        ((ROW, -1e39, True, False, {}), "the env returned the reward -1e+39, which float32 cannot hold; scale it down"),
        ((ROW, 0.0, "no", False, {}), "the env returned terminated='no'; it must be True or False"),
        ((np.zeros(3), 0.0, False, False, {}), "the env returned an observation of shape (3,) for 'observation'; its"),
        (([[1.0], [1.0, 2.0]], 0.0, False, False, {}), "the env returned an observation of shape (rows of different"),
        ((None, 0.0, False, False, {}), f"the env returned None for 'observation'; {ITS_SPACE}"),
        (("abc", 0.0, False, False, {}), f"the env returned 'abc' for 'observation'; {ITS_SPACE}"),
        ((ROW + 1j, 0.0, False, False, {}), f"the env returned 1j for 'observation'; {ITS_SPACE}"),
        (
            (np.full(2, -1e300), 0.0, False, False, {}),
            "the env returned -1e+300 for 'observation', which float32",
        ),
    ],
)
def test_a_step_of_the_wrong_form(at_step, message):
    error = failure_of(answering(at_step=at_step))
    assert type(error) is BadAnswer
    assert str(error).startswith(f"<Answers instance>: {message}")
    assert str(error).endswith(f"; {EnvListHost.step_form}")


@pytest.mark.parametrize("at_reset", [ROW, None, (ROW, 0.0, {}), (np.zeros(3), {})])
def test_a_reset_of_the_wrong_form(at_reset):
    error = failure_of(answering(at_reset=at_reset))
    assert type(error) is BadAnswer
    assert str(error).startswith("<Answers instance>: ")
    assert str(error).endswith(f"; {EnvListHost.reset_form}")


def test_an_exception_of_the_env_keeps_its_type():
    class Raising(Answering):
        def step(self, action):
            raise ValueError("no such move")

    error = failure_of(Raising())
    assert (type(error), str(error)) == (ValueError, "no such move")


INTEGERS = gym.spaces.Dict({"at": gym.spaces.Discrete(3), "map": gym.spaces.Box(0, 255, (2,), np.uint8)})


@pytest.mark.parametrize(
    ("at", "cells", "message"),
    [
        (0.5, [0, 0], "the env returned 0.5 for 'at', which int64 cannot hold; its observation space is Discrete(3)"),
        (1.0, [7.0, 2.25], "the env returned 2.25 for 'map', which uint8 cannot hold; its observation space is Box"),
        (1.0, [255.0, 0.0], None),
    ],
)
def test_observations_that_integers_cannot_hold(at, cells, message):
    kind = answering(
        observation_space=INTEGERS,
        at_reset=({"at": 0, "map": np.zeros(2, np.uint8)}, {}),
        at_step=({"at": at, "map": np.array(cells)}, 0.0, False, False, {}),
    )
    host = EnvListHost([kind, kind])
    host.reset_all()
    step = host.step([np.zeros(2, np.int64)])
    assert [message in str(error) for _, error in step.failed] == ([] if message is None else [True] * 2)
    if message is None:
        assert [(leaf.dtype, leaf[1].tolist()) for leaf in step.observation] == [("int64", 1), ("uint8", [255, 0])]


def test_a_collector_raises_the_error_with_the_number_of_the_env(fork_server):
    def make():
        return answering(at_step=(ROW, 0.0, False, {}))

    with (
        Collector(make, frames_per_batch=4, total_frames=8, backend="process", num_collectors=1) as collector,
        pytest.raises(BadAnswer, match=r"a gymnasium env has step\(action\) ->") as caught,
    ):
        next(iter(collector))
    assert any(note.startswith("raised by env 0 ") for note in caught.value.__notes__)


LARGE = r"the env returned the reward 1e\+39, which float32 cannot hold; scale it down"


def two(env):
    return SyncVectorEnv([lambda: env] * 2)


@pytest.mark.parametrize("batched", [lambda env: env, two], ids=["alone", "vector"])
def test_a_reward_that_float32_cannot_hold_is_an_error_in_batches_and_evaluations(batched):
    env = batched(answering(at_step=(ROW, 1e39, False, True, {})))
    with Collector(env, frames_per_batch=4) as collector:
        with pytest.raises(BadAnswer, match=LARGE):
            collector.next()
        collector.shutdown(close_env=False)
    with pytest.raises(BadAnswer, match=LARGE):
        evaluate_policy(lambda x: np.zeros(x.shape[:-1], np.int64), env, 1)


@pytest.mark.parametrize("reward", [np.inf, -np.inf, np.nan, float(np.finfo(np.float32).max)])
def test_a_reward_that_float32_can_hold_does_not_change(reward):
    with Collector(answering(at_step=(ROW, reward, False, False, {})), frames_per_batch=2) as collector:
        np.testing.assert_array_equal(collector.next()["next", "reward"], np.full((2, 1), reward))
