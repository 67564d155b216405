"""The default network, by the keys of `model`."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from swath.rollout_workers.config.checks import MODEL_DEFAULTS
from swath.rollout_workers.policies.networks import DefaultNetwork

BOX = spaces.Box(-1, 1, (4,))


def network(space=BOX, outputs=6, *, with_value=True, **model):
    torch.manual_seed(0)
    return DefaultNetwork(space, outputs, {**MODEL_DEFAULTS, **model}, with_value=with_value)


def widths(net):
    return {name: list(p.shape) for name, p in net.named_parameters() if "weight" in name}


def test_by_default_policy_and_value_have_two_layers_of_256_each():
    net = network()
    assert set(map(tuple, widths(net).values())) == {(256, 4), (256, 256), (6, 256), (1, 256)}
    out, value = net(torch.randn(3, 4))
    assert (out.shape, value.shape) == ((3, 6), (3,))
    assert out.abs().max() < 0.1 < value.abs().max()


def test_shared_layers_are_there_once_and_the_value_is_not_small_at_first():
    net = network(fcnet_hiddens=[32], vf_share_layers=True)
    assert list(widths(net).values()) == [[32, 4], [7, 32]]
    out, value = net(torch.randn(50, 4))
    assert out.abs().max() < 0.1 < value.abs().max()
    x = torch.randn(5, 4)
    assert torch.equal(net.value(x), net(x)[1])


@pytest.mark.parametrize(("name", "layer"), [("tanh", nn.Tanh), ("relu", nn.ReLU), ("silu", nn.SiLU)])
def test_the_activation_is_the_named_one(name, layer):
    net, x = network(fcnet_hiddens=[5], fcnet_activation=name, with_value=False), torch.randn(2, 4)
    first, bias, last, end = net.parameters()
    torch.testing.assert_close(net(x), layer()(x @ first.T + bias) @ last.T + end)


def test_a_free_log_std_does_not_depend_on_the_observation():
    net = network(free_log_std=True)
    with torch.no_grad():
        net.log_std.copy_(torch.tensor([1.0, 2.0, 3.0]))
    out, _ = net(torch.randn(4, 4))
    assert out.shape == (4, 6)
    assert torch.equal(out[:, 3:], torch.tensor([1.0, 2.0, 3.0]).expand(4, 3))
    assert out[:, :3].std() > 0
    torch.autograd.backward(out.sum())
    assert net.log_std.grad.tolist() == [4.0, 4.0, 4.0]


OBSERVATIONS = {
    "vector": spaces.Box(-1, 1, (4,), dtype=np.float64),
    "matrix": spaces.Box(-1, 1, (2, 3)),
    "bytes": spaces.Box(0, 255, (16,), dtype=np.uint8),
    "binary": spaces.MultiBinary(3),
    "choice": spaces.Discrete(4, start=2),
    "choices": spaces.MultiDiscrete([2, 3]),
    "nested": spaces.Dict(b=spaces.Discrete(3), a=spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2)])),
    "image": spaces.Box(0, 255, (48, 40, 3), dtype=np.uint8),
    "channels first": spaces.Box(0, 255, (3, 48, 40), dtype=np.uint8),
    "small image": spaces.Box(0, 1, (7, 7, 3)),
    "tiny image": spaces.Box(0, 1, (1, 1, 1)),
}


def batched(space, n=3):
    rows = [space.sample() for _ in range(n)]
    if isinstance(space, spaces.Dict):
        return {name: batched(part, n) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(batched(part, n) for part in space.spaces)
    return torch.as_tensor(np.stack(rows))


@pytest.mark.parametrize("space", OBSERVATIONS.values(), ids=OBSERVATIONS)
@pytest.mark.parametrize("shared", [False, True])
def test_any_observation_can_be_read(space, shared):
    space.seed(0)
    obs = batched(space)
    obs = obs.float() if isinstance(obs, torch.Tensor) and obs.dtype == torch.float64 else obs
    net = network(space, 2, fcnet_hiddens=[8], vf_share_layers=shared)
    out, value = net(obs)
    assert (out.shape, value.shape) == ((3, 2), (3,))
    assert out.unique(dim=0).shape[0] > 1
    assert torch.equal(net.value(obs), value)
