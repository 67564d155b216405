import numpy as np
import pytest
import torch
from gymnasium import spaces

from swath.learn.encoders import VectorEncoder
from swath.rollout.spaces import observation_leaves

EVERYTHING = spaces.Dict(
    {
        "arm": spaces.Dict({"angle": spaces.Box(-1, 1, (2, 2)), "force": spaces.Box(-1, 1, (), np.float64)}),
        "room": spaces.Discrete(3, start=2),
        "doors": spaces.MultiDiscrete([2, 3], start=[0, 1]),
        "lamps": spaces.MultiBinary(2),
        "pixels": spaces.Box(0, 255, (2, 1), np.uint8),
    }
)
ENTRIES = {
    ("arm", "angle"): torch.tensor([[0.1, 0.2], [0.3, 0.4]]),
    ("arm", "force"): torch.tensor(0.5),
    "room": torch.tensor(4),
    "doors": torch.tensor([1, 1]),
    "lamps": torch.tensor([0, 1], dtype=torch.int8),
    "pixels": torch.tensor([[255], [51]], dtype=torch.uint8),
}
FLAT = {
    ("arm", "angle"): [0.1, 0.2, 0.3, 0.4],
    ("arm", "force"): [0.5],
    "room": [0, 0, 1],
    "doors": [0, 1, 1, 0, 0],
    "lamps": [0, 1],
    "pixels": [1, 0.2],
}


def encoder_of(space, *, standardise=False):
    leaves = observation_leaves(space)
    return VectorEncoder(leaves, standardise=standardise), [leaf.key for leaf in leaves]


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_leaves_of_all_kinds_lie_side_by_side(lead):
    encoder, keys = encoder_of(EVERYTHING)
    out = encoder(*(torch.broadcast_to(ENTRIES[key], (*lead, *ENTRIES[key].shape)) for key in keys))
    expected = torch.tensor([number for key in keys for number in FLAT[key]])
    assert encoder.features == len(expected) == 17
    torch.testing.assert_close(out, expected.expand(*lead, 17))


def test_running_figures_are_of_the_flat_features():
    encoder, _ = encoder_of(spaces.Box(-1, 1, (2, 2)), standardise=True)
    rows = 7 + 3 * torch.randn(500, 2, 2)
    encoder.update((rows,))
    flat = rows.reshape(500, 4)
    expected = (flat - flat.mean(0)) / flat.std(0, correction=0)
    torch.testing.assert_close(encoder(rows), expected.clamp(-10, 10), atol=1e-4, rtol=1e-4)
