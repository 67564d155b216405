import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical as Reference

from swath.learn.heads import Categorical, MultiCategorical

SHAPES = st.lists(st.integers(1, 4), max_size=2).map(tuple)


@settings(deadline=None, max_examples=30)
@given(shape=SHAPES, n=st.integers(1, 7), start=st.integers(-2, 3), seed=st.integers(0, 1000))
def test_a_choice_has_the_log_probability_and_entropy_of_the_softmax(shape, n, start, seed):
    torch.manual_seed(seed)
    logits, head = 3 * torch.randn(*shape, n), Categorical(n, start)
    action, log_prob = head.sample(logits)
    reference = Reference(logits=logits)
    assert action.shape == log_prob.shape == shape
    assert action.dtype == torch.int64
    torch.testing.assert_close(log_prob, reference.log_prob(action - start), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(head.log_prob(logits, action), log_prob, atol=0, rtol=0)
    torch.testing.assert_close(head.entropy(logits), reference.entropy(), atol=1e-6, rtol=1e-5)


def test_choices_come_as_often_as_the_softmax_says():
    torch.manual_seed(0)
    logits = torch.tensor([2.0, 0.0, -1.0, -5.0, 1.0])
    action, _ = Categorical(5).sample(logits.expand(200_000, 5))
    counts, expected = torch.bincount(action, minlength=5).double(), 200_000 * logits.double().softmax(-1)
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared < 18.5  # a fair sampler exceeds it once in 1,000 seeds


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_multi_choices_take_the_shape_and_the_start_of_their_space(lead):
    head = MultiCategorical([2, 2, 3, 3], shape=(2, 2), start=[5, 6, 7, 8])
    out = torch.randn(*lead, head.inputs)
    action, log_prob = head.sample(out)
    assert action.shape == (*lead, 2, 2)
    assert log_prob.shape == lead
    offset = action - torch.tensor([[5, 6], [7, 8]])
    assert ((offset >= 0) & (offset < torch.tensor([[2, 2], [3, 3]]))).all()
    assert torch.equal(head.log_prob(out, action), log_prob)
