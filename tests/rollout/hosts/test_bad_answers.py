"""An env that returns what cannot be used: the error says which env, what is wrong and what its API wants."""

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
    """Answers what its class says."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    begun, stepped = (ROW, {}), (ROW, 0.0, False, False, {})

    def reset(self, *, seed=None, options=None):
        return self.begun

    def step(self, action):
        return self.stepped


def answering(**answers):
    return type("Answers", (Answering,), answers)()


def failure_of(env):
    """What the second env of two raises in its first reset, or else in its first step."""
    host = EnvListHost([Answering(), env])
    try:
        host.reset_all()
    except EnvRaised as raised:
        return {raised.env: raised.cause}[1]
    return dict(host.step([np.zeros(2, np.int64)]).failed)[1]


@pytest.mark.parametrize(
    ("stepped", "said"),
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
def test_a_step_of_the_wrong_form(stepped, said):
    error = failure_of(answering(stepped=stepped))
    assert type(error) is BadAnswer
    assert str(error).startswith(f"<Answers instance>: {said}")
    assert str(error).endswith(f"; {EnvListHost.step_form}")


@pytest.mark.parametrize("begun", [ROW, None, (ROW, 0.0, {}), (np.zeros(3), {})])
def test_a_reset_of_the_wrong_form(begun):
    error = failure_of(answering(begun=begun))
    assert type(error) is BadAnswer
    assert str(error).startswith("<Answers instance>: ")
    assert str(error).endswith(f"; {EnvListHost.reset_form}")


def test_what_a_call_of_the_env_raises_stays_what_it_is():
    class Raising(Answering):
        def step(self, action):
            raise ValueError("no such move")

    error = failure_of(Raising())
    assert (type(error), str(error)) == (ValueError, "no such move")


WHOLE = gym.spaces.Dict({"at": gym.spaces.Discrete(3), "seen": gym.spaces.Box(0, 255, (2,), np.uint8)})


@pytest.mark.parametrize(
    ("at", "seen", "said"),
    [
        (0.5, [0, 0], "the env returned 0.5 for 'at', which int64 cannot hold; its observation space is Discrete(3)"),
        (1.0, [7.0, 2.25], "the env returned 2.25 for 'seen', which uint8 cannot hold; its observation space is Box"),
        (1.0, [255.0, 0.0], None),
    ],
)
def test_observations_that_would_lose_in_whole_numbers(at, seen, said):
    seen = np.array(seen)
    kind = answering(
        observation_space=WHOLE,
        begun=({"at": 0, "seen": np.zeros(2, np.uint8)}, {}),
        stepped=({"at": at, "seen": seen}, 0.0, False, False, {}),
    )
    host = EnvListHost([kind, kind])
    host.reset_all()
    moved = host.step([np.zeros(2, np.int64)])
    assert [said in str(error) for _, error in moved.failed] == ([] if said is None else [True] * 2)
    if said is None:
        assert [(leaf.dtype, leaf[1].tolist()) for leaf in moved.observation] == [("int64", 1), ("uint8", [255, 0])]


def test_a_collector_raises_it_wherever_the_env_is_and_says_which_one():
    def make():
        return answering(stepped=(ROW, 0.0, False, {}))

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
def test_a_reward_that_a_batch_cannot_hold_is_no_number_of_an_evaluation_either(batched):
    env = batched(answering(stepped=(ROW, 1e39, False, True, {})))
    with Collector(env, frames_per_batch=4) as collector:
        with pytest.raises(BadAnswer, match=LARGE):
            collector.next()
        collector.shutdown(close_env=False)
    with pytest.raises(BadAnswer, match=LARGE):
        evaluate_policy(lambda seen: np.zeros(seen.shape[:-1], np.int64), env, 1)


@pytest.mark.parametrize("reward", [np.inf, -np.inf, np.nan, float(np.finfo(np.float32).max)])
def test_a_reward_that_float32_has_stays_what_it_is(reward):
    with Collector(answering(stepped=(ROW, reward, False, False, {})), frames_per_batch=2) as collector:
        np.testing.assert_array_equal(collector.next()["next", "reward"], np.full((2, 1), reward))
