"""The loss against a plain loop over rows."""

import math

import pytest
import torch

from swath.learn.losses import Weighing, explained_variance, surrogate_loss

WEIGHTS = Weighing(0.2, 0.7, 0.01, 0.2)


def rows(n=40):
    """Log-ratio, advantage, value loss, entropy and divergence."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, generator=generator).double().requires_grad_() for _ in range(5)]


@pytest.mark.parametrize("kl_coef", [0.2, 0.0])
def test_the_surrogate_is_the_mean_of_its_parts_row_by_row(kl_coef):
    columns = rows()
    found = surrogate_loss(*columns[:4], WEIGHTS._replace(kl=kl_coef), columns[4])
    policy = []
    for log_ratio, advantage in zip(columns[0].tolist(), columns[1].tolist(), strict=True):
        ratio = math.exp(log_ratio)
        policy.append(-min(advantage * ratio, advantage * min(max(ratio, 0.8), 1.2)))
    parts = [sum(policy) / len(policy), *(column.mean().item() for column in columns[2:])]
    total = parts[0] + 0.7 * parts[1] - 0.01 * parts[2] + kl_coef * parts[3]
    assert [part.item() for part in found] == pytest.approx([total, *parts])
    assert [part.requires_grad for part in found] == [True, False, False, False, False]


def test_without_a_critic_there_is_no_value_loss():
    log_ratio, advantage, _, entropy, _ = rows()
    found = surrogate_loss(log_ratio, advantage, None, entropy, Weighing(0.3, 1.0, 0.0))
    assert (found.value, found.kl) == (0, 0)
    assert found.total.item() == pytest.approx(found.policy.item())


def test_ratios_beyond_the_clip_get_no_gradient_where_they_would_gain():
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1], requires_grad=True)
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    loss = surrogate_loss(ratio.log(), advantage, None, torch.zeros(5), WEIGHTS)
    (gradient,) = torch.autograd.grad(loss.total, ratio)
    torch.testing.assert_close(5 * gradient, torch.tensor([0.0, 1.0, -1.0, 0.0, -1.0]))


def test_a_mean_of_some_rows_leaves_the_others_out_of_everything():
    columns, kept = rows(), torch.arange(40) < 13
    found = surrogate_loss(*columns[:4], WEIGHTS, columns[4], lambda values: values[kept].mean())
    short = [column[:13] for column in columns]
    torch.testing.assert_close(found, surrogate_loss(*short[:4], WEIGHTS, short[4]))
    gradients = torch.autograd.grad(found.total, columns)
    assert all((gradient[13:] == 0).all() and (gradient[:13] != 0).any() for gradient in gradients)


def test_explained_variance_is_1_for_the_targets_and_0_for_their_mean_and_never_below_minus_1():
    target = torch.tensor([1.0, 2.0, 6.0])
    for value, expected in ((target + 5, 1.0), (torch.full((3,), 3.0), 0.0), (-9 * target, -1.0)):
        assert explained_variance(target, value).item() == pytest.approx(expected, abs=1e-6)
    assert explained_variance(torch.ones(3), target) == 0
