"""Losses against plain loops over rows."""

import math

import pytest
import torch

from swath.learn.losses import Now, Then, Weighing, explained_variance, gradient_loss, surrogate_loss


def rows(seed=0, n=40):
    generator = torch.Generator().manual_seed(seed)
    now = Now(*(torch.randn(n, generator=generator).double().requires_grad_() for _ in range(4)))
    then = Then(*(torch.randn(n, generator=generator).double() for _ in range(3)))
    return now, then


@pytest.mark.parametrize("weighing", [Weighing(0.3, 10.0, 1.0, 0.0, 0.2), Weighing(0.1, 0.5, 0.7, 0.01, 0.0)])
def test_the_surrogate_is_the_mean_of_its_parts_row_by_row(weighing):
    now, then = rows()
    found = surrogate_loss(now, then, weighing, torch.mean)
    policy, value = [], []
    for logp, v, old, advantage, target in zip(
        now.log_prob.tolist(), now.value.tolist(), *(column.tolist() for column in then), strict=True
    ):
        ratio = math.exp(logp - old)
        clipped = min(max(ratio, 1 - weighing.clip), 1 + weighing.clip)
        policy.append(-min(advantage * ratio, advantage * clipped))
        value.append(min((v - target) ** 2, weighing.value_clip))
    n, entropy, kl = len(policy), now.entropy.mean().item(), now.kl.mean().item()
    mean_policy, mean_value = sum(policy) / n, sum(value) / n
    total = mean_policy + weighing.value * mean_value - weighing.entropy * entropy + weighing.kl * kl
    assert [part.item() for part in found] == pytest.approx([total, mean_policy, mean_value, entropy, kl])
    assert [part.requires_grad for part in found] == [True, False, False, False, False]


def test_without_a_critic_there_is_no_value_loss():
    now, then = rows()
    found = surrogate_loss(now._replace(value=None), then, Weighing(0.3, 10.0, 1.0, 0.0, 0.0), torch.mean)
    assert found.value == 0
    assert found.total.item() == pytest.approx(found.policy.item())


def test_a_mean_of_some_rows_leaves_the_others_out_of_everything():
    now, then = rows()
    kept = torch.arange(40) < 13
    weighing = Weighing(0.3, 10.0, 1.0, 0.1, 0.2)
    found = surrogate_loss(now, then, weighing, lambda values: values[kept].mean())
    short = surrogate_loss(
        Now(*(column[:13] for column in now)), Then(*(column[:13] for column in then)), weighing, torch.mean
    )
    torch.testing.assert_close(found, short)
    gradients = torch.autograd.grad(found.total, list(now))
    assert all((gradient[13:] == 0).all() and (gradient[:13] != 0).any() for gradient in gradients)


def test_the_policy_gradients_loss_is_minus_the_mean_of_products():
    log_prob, advantage = torch.tensor([-1.0, -2.0]), torch.tensor([3.0, -0.5])
    assert gradient_loss(log_prob, advantage, torch.mean).item() == pytest.approx(-(-3.0 + 1.0) / 2)


def test_explained_variance_is_1_for_the_targets_and_0_for_their_mean_and_never_below_minus_1():
    target = torch.tensor([1.0, 2.0, 6.0])
    for value, expected in ((target + 5, 1.0), (torch.full((3,), 3.0), 0.0), (-9 * target, -1.0)):
        assert explained_variance(target, value, torch.mean).item() == pytest.approx(expected, abs=1e-6)
    assert explained_variance(torch.ones(3), target, torch.mean) == 0
