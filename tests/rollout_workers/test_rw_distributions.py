"""Distributions by action space, against those of torch."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions as td

from swath.rollout_workers import TorchCategorical, TorchDiagGaussian, TorchMultiCategorical
from swath.rollout_workers.policies.networks import dist_class_of, head_for


def several(out, counts):
    return [td.Categorical(logits=part) for part in out.split(counts, -1)]


SPACES = {
    "one": (spaces.Discrete(5), [5]),
    "later": (spaces.Discrete(3, start=4), [3]),
    "uneven": (spaces.MultiDiscrete([2, 5, 3]), [2, 5, 3]),
    "even": (spaces.MultiDiscrete([[3, 3], [3, 3]], start=[[1, 0], [0, 2]]), [3] * 4),
    "binary": (spaces.MultiBinary(3), [2] * 3),
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


def test_counts_of_a_box_of_integers_begin_at_0_where_workers_add_the_bound():
    box = spaces.Box(5, 7, (2,), dtype=np.int64)
    out = torch.tensor([[0.0, 0, 9, 9, 0, 0]])
    assert head_for(box).mode(out)[0].tolist() == [[2, 0]]
    assert head_for(box, normalize=False).mode(out)[0].tolist() == [[7, 5]]


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2)])
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
    torch.testing.assert_close(head.sample(out)[1].shape, torch.Size([50]))
    torch.testing.assert_close(mine.entropy(), theirs.entropy())
    torch.testing.assert_close(mine.kl(its), td.kl_divergence(theirs, others))
    assert torch.equal(mine.deterministic_sample().reshape(50, -1), out.chunk(2, -1)[0])
    action, log_prob = head.sample(out)
    torch.testing.assert_close(log_prob, head.log_prob(out, action))
    action, log_prob = head.mode(out)
    torch.testing.assert_close(log_prob, head.log_prob(out, action))


@pytest.mark.parametrize("space", [spaces.Dict(a=spaces.Discrete(2)), spaces.Text(3)])
def test_other_action_spaces_are_refused(space):
    with pytest.raises(ValueError, match="no shipped distribution is for the action space"):
        head_for(space)


def test_they_can_be_made_as_the_field_makes_them():
    out = torch.tensor([[1.0, 3.0, 0.0, 2.0, 1.0]])
    assert TorchCategorical(out, None).deterministic_sample().tolist() == [1]
    assert TorchMultiCategorical(out, None, [2, 3]).deterministic_sample().tolist() == [[1, 1]]
    assert TorchDiagGaussian(out[:, :4].numpy(), None).deterministic_sample().tolist() == [[1, 3]]
