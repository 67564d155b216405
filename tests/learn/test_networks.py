import copy

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from swath.learn.networks import ACTIVATIONS, MLP, ValueNet

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


def test_values_stay_what_they_were_when_the_figures_move():
    critic, x = ValueNet(MLP([3, 16, 1])), torch.randn(4, 20, 3)
    for scale in (0.01, 1.0, 1000.0):
        before = critic(x)
        critic.update(scale * (torch.randn(500) + 2))
        torch.testing.assert_close(critic(x), before, atol=1e-5 * scale, rtol=1e-4)
    assert critic(x).shape == (4, 20)
    assert critic(x[0, 0]).shape == ()
