"""The default network by the keys of `model`, distributions by action space, and dtypes that NumPy has not."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from rw_toys import ppo
from torch import distributions as td

from swath.rollout_workers import TorchCategorical, TorchDiagGaussian, TorchMultiCategorical
from swath.rollout_workers.config.checks import MODEL_DEFAULTS
from swath.rollout_workers.policies.networks import DefaultNetwork, dist_class_of, head_for

BOX = spaces.Box(-1, 1, (4,))


def network(space=BOX, outputs=6, *, with_value=True, **model):
    torch.manual_seed(0)
    return DefaultNetwork(space, outputs, {**MODEL_DEFAULTS, **model}, with_value=with_value)


def widths(net):
    return {name: list(p.shape) for name, p in net.named_parameters() if "weight" in name}


def test_policy_and_value_have_layers_of_their_own_of_256_each():
    assert set(map(tuple, widths(network()).values())) == {(256, 4), (256, 256), (6, 256), (1, 256)}


def test_shared_layers_are_there_once_and_the_value_is_not_small_at_first():
    net, x = network(fcnet_hiddens=[32], vf_share_layers=True), torch.randn(50, 4)
    assert list(widths(net).values()) == [[32, 4], [7, 32]]
    out, value = net(x)
    assert out.abs().max() < 0.1 < value.abs().max()
    torch.testing.assert_close(net.value(x), value)


def test_a_free_log_std_does_not_depend_on_the_observation():
    net = network(free_log_std=True)
    with torch.no_grad():
        net.log_std.copy_(torch.tensor([1.0, 2.0, 3.0]))
    out, _ = net(torch.randn(4, 4))
    assert torch.equal(out[:, 3:], torch.tensor([1.0, 2.0, 3.0]).expand(4, 3))
    assert out[:, :3].std() > 0


OBSERVATIONS = {
    "vector": spaces.Box(-1, 1, (4,), dtype=np.float64),
    "nested": spaces.Dict(b=spaces.Discrete(3), a=spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2)])),
    "image": spaces.Box(0, 255, (48, 40, 3), dtype=np.uint8),
    "channels first": spaces.Box(0, 255, (3, 48, 40), dtype=np.uint8),
}


def batched(space, n=3):
    rows = [space.sample() for _ in range(n)]
    if isinstance(space, spaces.Dict):
        return {name: batched(part, n) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(batched(part, n) for part in space.spaces)
    return torch.as_tensor(np.stack(rows))


@pytest.mark.parametrize("space", OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_any_observation_can_be_read(space):
    space.seed(0)
    obs = batched(space)
    obs = obs.float() if isinstance(obs, torch.Tensor) and obs.dtype == torch.float64 else obs
    net = network(space, 2, fcnet_hiddens=[8])
    out, value = net(obs)
    assert (out.shape, value.shape) == ((3, 2), (3,))
    assert out.unique(dim=0).shape[0] > 1
    assert torch.equal(net.value(obs), value)


def several(out, counts):
    return [td.Categorical(logits=part) for part in out.split(counts, -1)]


SPACES = {
    "one": (spaces.Discrete(5), [5]),
    "even": (spaces.MultiDiscrete([[3, 3], [3, 3]], start=[[1, 0], [0, 2]]), [3] * 4),
    "whole": (spaces.Box(np.array([0, -1]), np.array([2, 3]), dtype=np.int32), [3, 5]),
}


@pytest.mark.parametrize(("space", "counts"), SPACES.values(), ids=SPACES)
def test_choices_are_those_of_torch(space, counts):
    torch.manual_seed(0)
    head = head_for(space, normalize=False)
    assert head.inputs == sum(counts)
    out, other = torch.randn(2, 50, head.inputs).unbind()
    made = dist_class_of(head)
    mine, its = made(out, None), made(other)
    sample = mine.sample()
    assert all(action.astype(space.dtype) in space for action in sample.numpy())
    start = torch.as_tensor(space.low if isinstance(space, spaces.Box) else getattr(space, "start", 0))
    flat = (sample - start).reshape(50, -1)
    theirs, others = several(out, counts), several(other, counts)
    expected = sum(one.log_prob(flat[:, i]) for i, one in enumerate(theirs))
    torch.testing.assert_close(mine.logp(sample), expected)
    torch.testing.assert_close(mine.entropy(), sum(one.entropy() for one in theirs))
    torch.testing.assert_close(mine.kl(its), sum(td.kl_divergence(a, b) for a, b in zip(theirs, others, strict=True)))
    best = torch.stack([one.logits.argmax(-1) for one in theirs], -1).reshape(sample.shape) + start
    assert torch.equal(mine.deterministic_sample(), best)


@pytest.mark.parametrize("shape", [(), (2, 2)])
def test_normal_numbers_are_those_of_torch(shape):
    torch.manual_seed(0)
    head = head_for(spaces.Box(-1, 1, shape))
    out, other = torch.randn(2, 50, head.inputs).unbind()
    made = dist_class_of(head)
    mine, its = made(out), made(other)
    theirs, others = (td.Independent(td.Normal(x.chunk(2, -1)[0], x.chunk(2, -1)[1].exp()), 1) for x in (out, other))
    sample = mine.sample()
    assert sample.shape == (50, *shape)
    torch.testing.assert_close(mine.logp(sample), theirs.log_prob(sample.reshape(50, -1)))
    torch.testing.assert_close(mine.entropy(), theirs.entropy())
    torch.testing.assert_close(mine.kl(its), td.kl_divergence(theirs, others))
    assert torch.equal(mine.deterministic_sample().reshape(50, -1), out.chunk(2, -1)[0])
    action, log_prob = head.sample(out)
    torch.testing.assert_close(log_prob, head.log_prob(out, action))
    action, log_prob = head.mode(out)
    torch.testing.assert_close(log_prob, head.log_prob(out, action))


def test_other_action_spaces_are_refused():
    with pytest.raises(ValueError, match="no shipped distribution is for the action space"):
        head_for(spaces.Dict(a=spaces.Discrete(2)))


def test_classes_take_what_the_model_gives_and_weights_of_half_precision_go_as_float32():
    out = torch.tensor([[1.0, 3.0, 0.0, 2.0, 1.0]])
    assert TorchCategorical(out, None).deterministic_sample().tolist() == [1]
    assert TorchMultiCategorical(out, None, [2, 3]).deterministic_sample().tolist() == [[1, 1]]
    assert TorchDiagGaussian(out[:, :4].numpy(), None).deterministic_sample().tolist() == [[1, 3]]
    one, other = ppo(seed=1), ppo(seed=2)
    for policy in (one, other):
        policy.model.to(torch.bfloat16)
    weights = one.get_weights()
    assert {str(array.dtype) for array in weights.values()} == {"float32"}
    other.set_weights(weights)
    assert all(torch.equal(*pair) for pair in zip(one.model.parameters(), other.model.parameters(), strict=True))
