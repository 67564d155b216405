import torch

from swath.learn.networks import MLP, ValueNet


def test_values_stay_what_they_were_when_the_figures_move():
    critic, x = ValueNet(MLP([3, 16, 1])), torch.randn(4, 20, 3)
    for scale in (0.01, 1.0, 1000.0):
        before = critic(x)
        critic.update(scale * (torch.randn(500) + 2))
        torch.testing.assert_close(critic(x), before, atol=1e-5 * scale, rtol=1e-4)
    assert critic(x).shape == (4, 20)
    assert critic(x[0, 0]).shape == ()


def test_the_first_returns_set_the_figures_and_later_ones_pull_them():
    critic = ValueNet(MLP([3, 1]), memory=4)
    critic.update(100 + 5 * torch.randn(10_000))
    assert 99 < critic.mean < 101
    assert 4.9 < critic.std < 5.1
    for _ in range(60):
        critic.update(-3 + 2 * torch.randn(1000))
    assert -3.2 < critic.mean < -2.8
    assert 1.9 < critic.std < 2.1
