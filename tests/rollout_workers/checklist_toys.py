"""Workers for the check-list, quick to build."""

import gymnasium as gym
import numpy as np
from sampling_toys import made_of

from mock_envs import MockEnv, MultiAgentCartPole
from swath.rollout_workers import PPOTorchPolicy, RandomPolicy, RolloutWorker

SMALL = {"model": {"fcnet_hiddens": [4]}, "rollout_fragment_length": 10}
DEFAULT = "default_policy"


def cartpole(context=None):
    return gym.make("CartPole-v1")


def learner(policy=PPOTorchPolicy, **settings):
    """A worker that can learn."""
    return made_of(cartpole, policy, **{**SMALL, "seed": 3, **settings})


def mock(**arguments):
    """A worker with envs of five steps, whose policy draws."""
    return RolloutWorker(
        **{"env_creator": lambda context: MockEnv(5, context), "default_policy_class": RandomPolicy, **arguments}
    )


def bare(**arguments):
    """A worker without envs."""
    space = gym.spaces.Discrete(2)
    given = {"default_policy_class": RandomPolicy, "spaces": {DEFAULT: (space, space)}}
    return RolloutWorker(**{**given, **arguments})


def two(**settings):
    """A worker with two policies, of which the only agent of its env uses the first."""
    first = {"policies": ["a", "b"], "policy_mapping_fn": lambda agent_id, *_, **__: "a", "seed": 3}
    return made_of(lambda: MultiAgentCartPole({"num_agents": 1}), PPOTorchPolicy, **{**SMALL, **first, **settings})


def spaces_of(env=None):
    env = env or MockEnv(5)
    return {"observation_space": env.observation_space, "action_space": env.action_space}


def shifted(weights, by=1.0):
    """Other weights of these shapes."""
    return {pid: {name: array + np.float32(by) for name, array in own.items()} for pid, own in weights.items()}


def same(one, other):
    """Whether two dicts of arrays are equal, bit for bit."""
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def alike(one, other):
    """The same of weights by policy."""
    return one.keys() == other.keys() and all(same(one[pid], other[pid]) for pid in one)
