import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from swath.learn.encoders import ImageEncoder, Standardise, VectorEncoder
from swath.rollout.spaces import observation_leaves

KINDS = {
    "angle": (spaces.Box(-1, 1, (2, 2)), torch.tensor([[0.1, 0.2], [0.3, 0.4]]), [0.1, 0.2, 0.3, 0.4]),
    "force": (spaces.Box(-1, 1, (), np.float64), torch.tensor(0.5), [0.5]),
    "room": (spaces.Discrete(3, start=2), torch.tensor(4), [0, 0, 1]),
    "doors": (spaces.MultiDiscrete([2, 3], start=[0, 1]), torch.tensor([1, 1]), [0, 1, 1, 0, 0]),
    "lamps": (spaces.MultiBinary(2), torch.tensor([0, 1], dtype=torch.int8), [0, 1]),
    "pixels": (spaces.Box(0, 255, (2, 1), np.uint8), torch.tensor([[255], [51]], dtype=torch.uint8), [1, 0.2]),
}


@pytest.mark.parametrize("lead", [(), (2, 3)])
def test_leaves_of_all_kinds_lie_side_by_side(lead):
    leaves = observation_leaves(spaces.Dict({name: space for name, (space, _, _) in KINDS.items()}))
    encoder, keys = VectorEncoder(leaves, standardise=False), [leaf.key for leaf in leaves]
    out = encoder(*(torch.broadcast_to(KINDS[key][1], (*lead, *KINDS[key][1].shape)) for key in keys))
    expected = torch.tensor([number for key in keys for number in KINDS[key][2]])
    assert encoder.features == len(expected) == 17
    torch.testing.assert_close(out, expected.expand(*lead, 17))


@pytest.mark.parametrize("shape", [(4, 84, 84), (84, 84), (96, 64, 3), (1, 36, 36)])
@pytest.mark.parametrize("lead", [(), (2, 3)])
def test_images_of_any_layout_become_features(shape, lead):
    features = ImageEncoder(shape, features=16)(torch.randint(0, 256, (*lead, *shape), dtype=torch.uint8))
    assert (features.shape, features.dtype) == ((*lead, 16), torch.float32)


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
