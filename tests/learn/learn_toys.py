"""Batches and policies for the tests of learn/."""

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict

from swath.learn import NetworkConfig, make_policy

BOX = spaces.Box(-np.inf, np.inf, (3,))
TWO = spaces.Discrete(2)
SMALL = NetworkConfig(hidden=(16,))


def small_policy(action_space=TWO, observation_space=BOX, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make_policy(observation_space, action_space, SMALL)


def batch_of(policy, shape=(4, 25), seed=0, end_rate=0.1):
    """A batch as a collector gives it, of random states; every fifth end is a truncation."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        path = torch.randn(*shape[:-1], shape[-1] + 1, 3)
        done = torch.rand(*shape, 1) < end_rate
        truncated = done & (torch.rand(*shape, 1) < 0.2)
        action, log_prob = policy(path[..., :-1, :])
        after = torch.where(done, torch.randn(*shape, 3), path[..., 1:, :])
        ends = {"done": done, "truncated": truncated, "terminated": done & ~truncated}
        entries = {
            "observation": path[..., :-1, :],
            "action": action,
            "action_log_prob": log_prob,
            "next": {"observation": after, "reward": torch.randn(*shape, 1), **ends},
        }
        return TensorDict(entries, batch_size=shape).clone()
