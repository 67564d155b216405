import copy

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from swath.learn.networks import ACTIVATIONS, MLP, ValueNet, orthogonal

LAYERS = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU, "elu": nn.ELU, "linear": nn.Identity}


def as_sequential(net, activation):
    weights = list(net.parameters())
    layers = []
    for weight, bias in zip(weights[::2], weights[1::2], strict=True):
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight, layer.bias = weight, bias
        layers += [layer, LAYERS[activation]()]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("lead", [(), (2, 3)])
def test_it_computes_what_a_sequential_of_its_layers_computes(activation, lead):
    net = MLP([4, 64, 32, 3], activation=activation)
    for bias in list(net.parameters())[1::2]:
        nn.init.normal_(bias)
    reference, x = as_sequential(net, activation), torch.randn(*lead, 4)
    torch.testing.assert_close(net(x), reference(x))
    mine = torch.autograd.grad(net(x).square().sum(), list(net.parameters()))
    theirs = torch.autograd.grad(reference(x).square().sum(), list(net.parameters()))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_quickly_it_computes_the_same(activation, dtype):
    net, x = MLP([4, 64, 3], activation=activation).to(dtype), torch.randn(50, 4, dtype=dtype)
    with torch.inference_mode():
        torch.testing.assert_close(net(x, quick=True), net(x))


def test_it_uses_weights_put_in_from_outside():
    net, other, x = MLP([4, 8, 2]), MLP([4, 8, 2]), torch.randn(5, 4)
    expected = other(x)
    assert torch.equal(torch.func.functional_call(net, dict(other.named_parameters()), (x,)), expected)
    with TensorDict.from_module(other).data.to_module(net):
        assert torch.equal(net(x), expected)
    assert not torch.equal(net(x), expected)
    assert torch.equal(copy.deepcopy(other)(x), expected)


def test_weights_are_orthogonal_and_scaled():
    net = MLP([64, 64, 64], out_gain=0.01)
    first, _, last, bias = net.parameters()
    torch.testing.assert_close(first @ first.T, 2 * torch.eye(64), atol=1e-5, rtol=0)
    torch.testing.assert_close(last @ last.T, 1e-4 * torch.eye(64), atol=1e-8, rtol=0)
    assert not bias.any()
    assert net.last_layer[0] is last
    assert net.last_layer[1] is bias
    assert orthogonal(torch.empty(3, 2)).shape == (3, 2)


def test_it_can_absorb_what_happened_to_its_input():
    net, x = MLP([4, 8, 2]), torch.randn(5, 4)
    factor, offset = torch.tensor([1.0, 2.0, 0.5, 3.0]), torch.tensor([0.0, 1.0, -1.0, 5.0])
    before = net(factor * x + offset)
    net.absorb(factor, offset)
    torch.testing.assert_close(net(x), before, atol=1e-5, rtol=1e-5)


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
