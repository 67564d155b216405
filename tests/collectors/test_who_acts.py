"""Which policy acts, how it is called, how it explores."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from collector_toys import InThread, Mode, first_batch, make_collector
from gymnasium import spaces
from tensordict.nn import TensorDictModule
from tensordict.nn.probabilistic import interaction_type
from torch import nn

from counting_vector import CountingVectorEnv
from swath import Collector, ExplorationType
from swath.testing import Counting, CountingEnv

ACTION = torch.zeros(2, dtype=torch.int64)


@pytest.fixture(autouse=True)
def _fresh_warnings(monkeypatch):
    monkeypatch.setattr("swath.errors._warned_of", set())


# ---- exploration

NAMES = ["random", "deterministic", "mode", "mean", "median"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("spelling", [str, str.upper, lambda name: ExplorationType[name.upper()]])
def test_the_exploration_type_is_passed_if_the_signature_has_it(name, spelling):
    policy = Mode()
    first_batch(policy=policy, exploration_type=spelling(name))
    assert policy.told is ExplorationType[name.upper()]


class Seeing(nn.Module):
    """Notes the exploration type of its calls."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def forward(self, observation):
        self.seen.add(interaction_type())
        return torch.zeros(observation.shape[:-1], dtype=torch.int64)

    def __deepcopy__(self, memo):
        return self


def test_collectors_that_draw_in_two_threads_never_see_each_others_exploration():
    seeing = {ExplorationType.MODE: Seeing(), ExplorationType.RANDOM: Seeing()}
    collectors = [
        make_collector(
            policy=TensorDictModule(policy, ["observation"], ["action"]), exploration_type=kind, frames_per_batch=1000
        )
        for kind, policy in seeing.items()
    ]
    for draw in [InThread(collector.next) for collector in collectors]:
        draw.join()
        assert draw.error is None
    for collector in collectors:
        collector.shutdown()
    assert {kind: policy.seen for kind, policy in seeing.items()} == {kind: {kind} for kind in seeing}
    assert interaction_type() is None


# ---- forms and factories


def test_a_trusted_policy_gets_the_tensordict_whatever_its_signature():
    def policy(*anything):
        return anything[0].set("action", ACTION)

    with pytest.raises(TypeError, match="trust_policy=True"):
        make_collector(policy=policy)
    assert first_batch(policy=policy, trust_policy=True).shape == (2, 5)


class Head(nn.Module):
    def __init__(self, env):
        super().__init__()
        assert isinstance(env, gym.Env | CountingVectorEnv)
        self.env = env
        space = getattr(env, "single_action_space", env.action_space)
        self.net = nn.Linear(3, int(space.n))

    def forward(self, observation):
        return self.net(observation).argmax(-1)


def named_env(*, env=None, hidden=3):
    return Head(env)


def positional(e, hidden=3):
    return Head(e)


FACTORIES = [Head, named_env, positional, lambda env=None: Head(env), [Head], (positional,)]


@pytest.mark.parametrize("factory", FACTORIES, ids=range(len(FACTORIES)))
def test_a_factory_gets_the_env_if_it_asks_for_it(factory):
    with make_collector(policy_factory=factory) as collector:
        assert collector.policy.env is collector.env[0]
    with make_collector(CountingVectorEnv(2), policy_factory=factory) as collector:
        assert collector.policy.env is collector.env


# ---- sources


def test_keywords_reach_ids_and_callables():
    with Collector("CartPole-v1", frames_per_batch=2, create_env_kwargs={"render_mode": "rgb_array"}) as collector:
        assert collector.env.render_mode == "rgb_array"
    with make_collector(CountingEnv, create_env_kwargs={"number": 7}) as collector:
        assert collector.next()["observation"][0, 0] == 7


def test_an_id_may_name_its_module():
    with Collector("gymnasium.envs.classic_control:CartPole-v1", frames_per_batch=3) as collector:
        assert collector.next().shape == (3,)


def test_actions_are_neither_clipped_nor_rescaled():
    class Watched(gym.Env):
        observation_space, action_space = spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (2,))
        got = []

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.got.append(action.copy())
            return np.zeros(1, np.float32), 0.0, False, False, {}

    batch = first_batch(Watched, lambda observation: torch.tensor([7.0, -7.0]), frames_per_batch=2)
    assert batch["action"].tolist() == [[7, -7]] * 2
    assert np.array_equal(Watched.got, batch["action"].numpy())


def test_a_random_policy_obeys_the_action_mask():
    class Masked(gym.ObservationWrapper):
        def __init__(self):
            super().__init__(CountingEnv(0, Counting(observation="vector")))
            self.observation_space = spaces.Dict({"x": self.observation_space, "action_mask": spaces.MultiBinary(3)})

        def observation(self, observation):
            return {"x": observation, "action_mask": np.eye(3, dtype=np.int8)[int(observation[2]) % 3]}

    batch = first_batch(Masked)
    assert torch.equal(batch["action"], batch["action_mask"].argmax(-1))
