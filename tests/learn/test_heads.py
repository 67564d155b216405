import math

import numpy as np
import pytest
import torch

from swath.learn.heads import Categorical, Gaussian


def test_choices_come_as_often_as_the_softmax_says():
    torch.manual_seed(0)
    logits = torch.tensor([2.0, 0.0, -1.0, -5.0, 1.0])
    action, _ = Categorical(5).sample(logits.expand(200_000, 5))
    counts, expected = torch.bincount(action, minlength=5).double(), 200_000 * logits.double().softmax(-1)
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared < 18.5  # a fair sampler exceeds it once in 1,000 seeds


INF = math.inf


def head_of(low, high, std=1.0):
    return Gaussian(np.array(low), np.array(high), math.log(std))


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 0.3), (-0.1, 0.7)])
def test_on_a_bound_the_probability_is_all_that_lies_beyond(low, high):
    torch.manual_seed(0)
    head, out = head_of([low], [high], std=1.3), torch.full((50_000, 1), 0.4)
    action, log_prob = head.sample(out)
    assert ((action >= low) & (action <= high)).all()
    for bound in (head.low, head.high):
        there = (action == bound).squeeze(-1)
        (probability,) = log_prob[there].exp().unique()
        assert there.float().mean().item() == pytest.approx(probability.item(), abs=0.01)


def test_sampled_log_probabilities_are_those_of_the_sampled_actions():
    head, out = head_of([-1.0, -INF, 0.0], [1.0, 3.0, INF]), torch.randn(1000, 3)
    action, log_prob = head.sample(out)
    assert (action[:, 0].abs() == 1).any()
    assert (action[:, 1] == 3).any()
    assert (action[:, 2] == 0).any()
    assert torch.equal(head.log_prob(out, action), log_prob)


def test_the_gradient_stays_finite_far_beyond_the_bounds():
    head = head_of([-1.0, -1.0], [1.0, 1.0], std=0.01)
    out = torch.tensor([[500.0, -500.0], [500.0, 500.0]], requires_grad=True)
    head.log_prob(out, torch.tensor([[1.0, -1.0], [-1.0, 0.0]])).sum().backward()
    assert torch.isfinite(out.grad).all()
    assert torch.isfinite(head.log_std.grad).all()
    assert out.grad[0].tolist() == [0.0, 0.0]
    assert (out.grad[1] < 0).all()  # towards the actions that were taken
