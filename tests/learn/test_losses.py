import pytest
import torch

from swath.learn.ppo import clipped_surrogate, explained_variance


def test_ratios_beyond_the_clip_get_no_gradient_where_they_would_gain():
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1], requires_grad=True)
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    loss = clipped_surrogate(ratio.log(), advantage, 0.2)
    torch.testing.assert_close(loss, torch.tensor([-1.2, 1.5, -0.5, 0.8, -1.1]))
    (gradient,) = torch.autograd.grad(loss.sum(), ratio)
    torch.testing.assert_close(gradient, torch.tensor([0.0, 1.0, -1.0, 0.0, -1.0]))


def test_explained_variance_is_1_for_the_targets_and_0_for_their_mean_and_never_below_minus_1():
    target = torch.tensor([1.0, 2.0, 6.0])
    for value, expected in ((target + 5, 1.0), (torch.full((3,), 3.0), 0.0), (-9 * target, -1.0)):
        assert explained_variance(target, value).item() == pytest.approx(expected, abs=1e-6)
    assert explained_variance(torch.ones(3), target) == 0
