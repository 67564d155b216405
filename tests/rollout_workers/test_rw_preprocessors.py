"""Observations of any space as arrays that networks take, one and many."""

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import utils

from swath.rollout.spaces import packer
from swath.rollout_workers import get_preprocessor
from swath.rollout_workers.preprocessors import NoPreprocessor, VectorPreprocessor

BOX = spaces.Box(-2, 3, (2, 2), np.float32)
IMAGE = spaces.Box(0, 255, (4, 4, 3), np.uint8)
DEEP = spaces.Dict(
    {"z": spaces.Tuple((spaces.Discrete(3, start=-1), BOX)), "a": spaces.Dict({"b": spaces.MultiBinary(3)})}
)

VECTORS = {
    "discrete": (spaces.Discrete(5), VectorPreprocessor, 5),
    "discrete from -2": (spaces.Discrete(3, start=-2), VectorPreprocessor, 3),
    "multi-discrete": (spaces.MultiDiscrete([2, 3, 1]), VectorPreprocessor, 6),
    "multi-discrete of rank 2": (spaces.MultiDiscrete([[2, 3], [4, 1]]), VectorPreprocessor, 10),
    "multi-discrete from": (spaces.MultiDiscrete([2, 3], start=[5, -1]), VectorPreprocessor, 5),
    "tuple": (spaces.Tuple((BOX, spaces.Discrete(3))), VectorPreprocessor, 7),
    "dict": (spaces.Dict({"b": BOX, "a": spaces.MultiDiscrete([2, 2])}), VectorPreprocessor, 8),
    "image beside": (spaces.Dict({"image": IMAGE, "n": spaces.Discrete(2)}), VectorPreprocessor, 50),
    "deep": (DEEP, VectorPreprocessor, 10),
    "float64 inside": (spaces.Tuple((spaces.Box(-1, 1, (), np.float64),)), VectorPreprocessor, 1),
}


def samples(space, n=6):
    space.seed(1)
    return [space.sample() for _ in range(n)]


@pytest.mark.parametrize("name", VECTORS)
def test_observations_become_the_vectors_that_gymnasium_makes_of_them(name):
    space, kind, size = VECTORS[name]
    made, rows = get_preprocessor(space)(space), samples(space)
    expected = np.stack([utils.flatten(space, row) for row in rows]).astype(np.float32)
    batch = made.transform_batch(packer(made.leaves)(rows))
    np.testing.assert_array_equal(batch, expected, strict=True)
    for row, vector in zip(rows, expected, strict=True):
        np.testing.assert_array_equal(made.transform(row), vector, strict=True)
    assert (type(made), made.shape) == (kind, (size,))


@pytest.mark.parametrize("name", VECTORS)
def test_the_processed_space_holds_what_is_processed_and_knows_the_original(name):
    space, _, size = VECTORS[name]
    made = get_preprocessor(space)(space)
    processed = made.observation_space
    assert (processed.shape, processed.dtype, processed.original_space) == ((size,), np.float32, space)
    assert all(made.transform(row) in processed for row in samples(space))
    flat = utils.flatten_space(space)
    np.testing.assert_array_equal(processed.low, flat.low.astype(np.float32))
    np.testing.assert_array_equal(processed.high, flat.high.astype(np.float32))


@pytest.mark.parametrize("space", [BOX, IMAGE, spaces.MultiBinary(3), spaces.Box(-1, 1, (), np.float64)], ids=str)
def test_boxes_and_bits_stay_as_they_are(space):
    made, rows = get_preprocessor(space)(space), samples(space)
    batch = np.stack(rows)
    assert (type(made), made.observation_space is space, made.shape) == (NoPreprocessor, True, space.shape)
    assert made.transform_batch([batch]) is batch
    assert made.transform(rows[0]) is rows[0]


def test_without_preprocessing_nested_observations_stay_nested():
    made = NoPreprocessor(DEEP)
    (row,) = samples(DEEP, 1)
    leaves = packer(made.leaves)([row, row])
    batch = made.transform_batch(leaves)
    assert list(batch) == ["a", "z"]
    for found, leaf in zip((batch["a"]["b"], *batch["z"]), leaves, strict=True):
        assert found is leaf
    assert (made.observation_space, made.shape, made.transform(row)) == (DEEP, None, row)


@pytest.mark.parametrize(
    ("space", "observation"),
    [
        (spaces.Discrete(3), 3),
        (spaces.Discrete(3), -1),
        (spaces.Discrete(3, start=2), 1),
        (spaces.MultiDiscrete([2, 3]), [1, 3]),
        (spaces.MultiDiscrete([2, 3]), [2, 0]),
    ],
    ids=str,
)
def test_a_value_outside_its_space_is_named_and_cannot_pass_for_another(space, observation):
    with pytest.raises(ValueError, match=r"the observation .* is not in (Multi)?Discrete"):
        get_preprocessor(space)(space).transform(observation)


@pytest.mark.parametrize("space", [spaces.Text(4), spaces.Dict({"a": spaces.Sequence(BOX)})], ids=str)
def test_a_space_that_cannot_be_served_is_refused(space):
    with pytest.raises(TypeError, match="cannot be served"):
        get_preprocessor(space)(space)
