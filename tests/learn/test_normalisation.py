import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swath.learn.encoders import Standardise


@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_figures_of_parts_are_those_of_the_whole(sizes, seed):
    rows = np.random.default_rng(seed).normal(100, [1, 5, 0.1], (sum(sizes), 3)).astype(np.float32)
    module = Standardise(3)
    for part in np.split(rows, np.cumsum(sizes)[:-1]):
        module.update(torch.from_numpy(part))
    np.testing.assert_allclose(module.mean, rows.mean(0, dtype=np.float64), rtol=1e-9)
    np.testing.assert_allclose(module.variance, rows.var(0, dtype=np.float64), rtol=1e-6, atol=1e-12)
    assert module.count == sum(sizes)


def test_far_values_are_cut_and_constant_ones_are_zero():
    module = Standardise(2)
    module.update(torch.stack([torch.randn(100), torch.full((100,), 5.0)], -1))
    out = module(torch.tensor([[1e6, 5.0], [-1e6, 6.0]]))
    torch.testing.assert_close(out, torch.tensor([[10.0, 0.0], [-10.0, 10.0]]))


def test_a_change_says_how_to_read_the_features_from_now_on():
    module, x = Standardise(3), torch.randn(200, 3)
    assert module.update(x) is None
    before = module(x)
    factor, offset = module.update(1 + 2 * torch.randn(200, 3))
    assert not torch.allclose(module(x), before)
    torch.testing.assert_close(factor * module(x) + offset, before, atol=1e-5, rtol=1e-5)


def test_a_feature_that_was_constant_is_read_anew():
    module, x = Standardise(2), torch.randn(100, 2)
    x[:, 1] = 5
    module.update(x)
    factor, offset = module.update(torch.randn(100, 2))
    assert factor[1] == 1
    assert offset[1] == 0
    assert factor[0] != 1
