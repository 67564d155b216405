"""Policies with small networks, batches that they acted in, and what remembers."""

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from swath.rollout_workers import PPOTorchPolicy, SampleBatch

BOX, TWO = spaces.Box(-10, 10, (3,)), spaces.Discrete(2)
CONFIG = {"seed": 0, "__policy_id": "p", "model": {"fcnet_hiddens": [16]}}


def ppo(action_space=TWO, observation_space=BOX, cls=PPOTorchPolicy, **config):
    return cls(observation_space, action_space, {**CONFIG, **config})


def batch_for(policy, n=60, seed=0):
    """Rows that the policy acted in, with made-up advantages and targets, which have no relation to its values."""
    draw = np.random.default_rng(seed)
    obs = draw.normal(size=(n, 3)).astype(np.float32)
    torch.manual_seed(seed)
    actions, _, extra = policy.compute_actions(obs, explore=True)
    made = {"advantages": draw.normal(size=n), "value_targets": draw.normal(size=n), "rewards": draw.normal(size=n)}
    columns = {name: column.astype(np.float32) for name, column in made.items()}
    return SampleBatch({"obs": obs, "actions": actions, **extra, **columns}, _num_grad_updates=0)


def equal(one, other):
    """Whether two dicts of arrays are, bit for bit."""
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


class Adder(nn.Module):
    """Remembers the sum of what it saw; its outputs are linear in that."""

    def __init__(self, observation_space, action_space, num_outputs, model_config):
        super().__init__()
        self.out, self.value = nn.Linear(3, num_outputs), nn.Linear(3, 1)

    def get_initial_state(self):
        return [np.zeros(3, np.float32), {"steps": torch.zeros(())}]

    def forward(self, obs, states, seq_lens):
        rows = obs.reshape(len(seq_lens), -1, 3)
        summed = states[0].unsqueeze(1) + rows.cumsum(1)
        flat = summed.reshape(-1, 3)
        last = summed[torch.arange(len(seq_lens)), seq_lens.long() - 1]
        after = [last, {"steps": states[1]["steps"] + seq_lens}]
        return self.out(flat), self.value(flat), after


def recurrent(**config):
    return ppo(model={"custom_model": Adder}, **config)
