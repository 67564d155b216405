"""Networks in dtypes that NumPy has not: what leaves them are float32 arrays, which hold the same numbers."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from policy_batches import BOX, batch_for, equal, ppo
from sampling_toys import made_of
from torch import nn

from swath.rollout_workers import PPOTorchPolicy


class Half(nn.Module):
    """A layer in bfloat16; its outputs too."""

    def __init__(self, observation_space, action_space, num_outputs, model_config):
        super().__init__()
        self.out = nn.Linear(observation_space.shape[0], num_outputs, dtype=torch.bfloat16)
        self.value = nn.Linear(observation_space.shape[0], 1)
        self.register_buffer("scale", torch.tensor(1.5, dtype=torch.float8_e4m3fn))

    def forward(self, obs):
        return self.out(obs.to(torch.bfloat16)), self.value(obs).squeeze(-1)


def half(seed=0):
    return ppo(seed=seed, model={"custom_model": Half})


def test_weights_come_as_float32_and_go_back_bit_for_bit():
    one, other = half(seed=1), half(seed=2)
    weights = one.get_weights()
    assert {name: str(array.dtype) for name, array in weights.items()} == dict.fromkeys(weights, "float32")
    assert not equal(weights, other.get_weights())
    other.set_weights(weights)
    for name, tensor in one.model.state_dict().items():
        there = other.model.state_dict()[name]
        assert there.dtype == tensor.dtype
        assert torch.equal(there.view(torch.uint8), tensor.view(torch.uint8))
    weights["out.weight"][:] = 0
    assert one.get_weights()["out.weight"].any(), "copies"


@pytest.mark.parametrize("explore", [True, False])
def test_answers_and_what_is_told_of_updates_are_arrays_and_numbers(explore):
    policy = half()
    obs = np.stack([BOX.sample() for _ in range(4)])
    actions, _, extra = policy.compute_actions(obs, explore=explore)
    assert (actions.dtype, {str(column.dtype) for column in extra.values()}) == (np.int64, {"float32"})
    stats = policy.learn_on_batch(batch_for(policy))["learner_stats"]
    assert all(isinstance(value, float) for value in stats.values())


def test_a_worker_collects_learns_and_hands_its_weights_on():
    settings = {"model": {"custom_model": Half}, "rollout_fragment_length": 20, "seed": 3}
    with (
        made_of(lambda: gym.make("CartPole-v1"), PPOTorchPolicy, **settings) as one,
        made_of(lambda: gym.make("CartPole-v1"), PPOTorchPolicy, **settings) as other,
    ):
        one.sample_and_learn(20)
        other.set_weights(one.get_weights())
        mine, theirs = (worker.get_weights()["default_policy"] for worker in (one, other))
    assert equal(mine, theirs)
