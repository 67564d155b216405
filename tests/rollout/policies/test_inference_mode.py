"""Modules are called in inference mode if this cannot be noticed: tensors that they keep can be part of a loss."""

import pytest
import torch
from torch import nn

from swath import Collector

FRAMES = 8


class Plain(nn.Module):
    """Keeps nothing."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 2)

    def forward(self, observation):
        return self.act(self.net(observation))

    def act(self, logits):
        return logits.argmax(-1)


class KeepsOutput(Plain):
    def act(self, logits):
        self.kept = logits
        return super().act(logits)


class Normalises(Plain):
    """A running mean that each call replaces."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(2))

    def act(self, logits):
        self.kept = 0.9 * self.kept + 0.1 * logits.mean(0)
        return super().act(logits)


class Plans(Plain):
    """Follows a gradient to its action."""

    def act(self, logits):
        with torch.enable_grad():
            shift = torch.zeros_like(logits, requires_grad=True)
            (slope,) = torch.autograd.grad((logits.detach() + shift).square().sum(), shift)
        return super().act(logits - slope)


def collected(policy, batches=3):
    with Collector("CartPole-v1", policy, envs_per_worker=2, frames_per_batch=FRAMES) as collector:
        return [batch for batch, _ in zip(collector, range(batches), strict=False)][-1]


@pytest.mark.parametrize("module", [True, False])
def test_a_module_that_keeps_nothing_is_called_in_inference_mode_and_a_function_is_not(module):
    modes = []

    class Noting(Plain):
        def act(self, logits):
            modes.append(torch.is_inference_mode_enabled())
            return super().act(logits)

    noting = Noting()
    collected(noting if module else noting.forward)
    assert len(modes) > FRAMES
    assert modes == [False] + [module] * (len(modes) - 1), "the first call may create tensors that stay"


@pytest.mark.parametrize("kind", [KeepsOutput, Normalises])
def test_tensors_that_a_module_keeps_can_be_part_of_a_loss(kind):
    policy = kind()
    collected(policy)
    weight = torch.ones(2, requires_grad=True)
    (policy.kept * weight).sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize("kind", [Plain, Plans, Normalises])
def test_a_policy_can_learn_from_its_own_batch(kind):
    policy = kind()
    batch = collected(policy)
    policy.net(batch["observation"]).square().mean().backward()
    assert policy.net.weight.grad.abs().sum() > 0
