"""Observations on their way to policies, actions and rewards on their way to and from envs."""

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import utils

from swath.rollout.spaces import packer
from swath.rollout_workers import get_preprocessor
from swath.rollout_workers.actions import action_processor
from swath.rollout_workers.preprocessors import NoPreprocessor

BOX = spaces.Box(-2, 3, (2, 2), np.float32)
IMAGE = spaces.Box(0, 255, (4, 4, 3), np.uint8)
DEEP = spaces.Dict(
    {"z": spaces.Tuple((spaces.Discrete(3, start=-1), BOX)), "a": spaces.Dict({"b": spaces.MultiBinary(3)})}
)

VECTORS = {
    "discrete": (spaces.Discrete(5), 5),
    "discrete from -2": (spaces.Discrete(3, start=-2), 3),
    "multi-discrete": (spaces.MultiDiscrete([2, 3, 1]), 6),
    "multi-discrete from": (spaces.MultiDiscrete([2, 3], start=[5, -1]), 5),
    "image beside": (spaces.Dict({"image": IMAGE, "n": spaces.Discrete(2)}), 50),
    "deep": (DEEP, 10),
    "float64 inside": (spaces.Tuple((spaces.Box(-1, 1, (), np.float64),)), 1),
}


def samples(space, n=6):
    space.seed(1)
    return [space.sample() for _ in range(n)]


@pytest.mark.parametrize("name", VECTORS)
def test_observations_become_the_vectors_that_gymnasium_makes_of_them(name):
    space, size = VECTORS[name]
    made, rows = get_preprocessor(space)(space), samples(space)
    expected = np.stack([utils.flatten(space, row) for row in rows]).astype(np.float32)
    np.testing.assert_array_equal(made.transform_batch(packer(made.leaves)(rows)), expected, strict=True)
    np.testing.assert_array_equal(made.transform(rows[0]), expected[0], strict=True)
    processed = made.observation_space
    assert (made.shape, processed.dtype, processed.original_space) == ((size,), np.float32, space)
    assert all(row in processed for row in expected)
    np.testing.assert_array_equal(processed.high, utils.flatten_space(space).high.astype(np.float32))


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


def test_a_value_outside_its_space_and_a_space_that_cannot_be_served_are_refused():
    for space, observation in (
        (spaces.Discrete(3), 3),
        (spaces.Discrete(3, start=2), 1),
        (spaces.MultiDiscrete([2, 3]), [2, 0]),
    ):
        with pytest.raises(ValueError, match=r"the observation .* is not in (Multi)?Discrete"):
            get_preprocessor(space)(space).transform(observation)
    for space in (spaces.Text(4), spaces.Dict({"a": spaces.Sequence(BOX)})):
        with pytest.raises(TypeError, match="cannot be served"):
            get_preprocessor(space)(space)


INF = np.inf
BOUNDED = spaces.Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))
HALF_OPEN = spaces.Box(np.array([-2, 0], np.float32), np.array([2, INF], np.float32))
COUNT = spaces.Box(3, 9, (2,), np.int64)
BYTES = spaces.Box(250, 255, (2,), np.uint8)

# action space, the policy's action, what the env gets: unchanged, normalised, clipped, both
TABLE = [
    (BOUNDED, [0.0, 0.0], [0.0, 0.0], [0.0, 5.0], [0.0, 0.0], [0.0, 5.0]),
    (BOUNDED, [-1.0, 1.0], [-1.0, 1.0], [-2.0, 10.0], [-1.0, 1.0], [-2.0, 10.0]),
    (BOUNDED, [3.0, -3.0], [3.0, -3.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]),
    (HALF_OPEN, [3.0, -3.0], [3.0, -3.0], [3.0, -3.0], [2.0, 0.0], [2.0, 0.0]),
    (COUNT, [-1, 8], [-1, 8], [2, 11], [3, 8], [3, 9]),
    (BYTES, [0, 5], [0, 5], [250, 255], [250, 250], [250, 255]),
    (spaces.MultiDiscrete([2, 3]), [1, 2], [1, 2], [1, 2], [1, 2], [1, 2]),
    (spaces.MultiBinary(2), [1, 0], [1, 0], [1, 0], [1, 0], [1, 0]),
]
SETTINGS = [(False, False), (True, False), (False, True), (True, True)]


def processed(space, leaves, normalize, clip):
    process = action_processor(space, normalize=normalize, clip=clip)
    return leaves if process is None else process(leaves)


@pytest.mark.parametrize(("space", "action", "expected"), [(row[0], row[1], row[2:]) for row in TABLE], ids=str)
@pytest.mark.parametrize("setting", range(4), ids=["neither", "normalize", "clip", "both"])
def test_each_setting_does_its_part_to_a_batch(space, action, expected, setting):
    raw = np.array([action, action], dtype=np.float32 if space.dtype == np.float32 else np.int64)
    kept = raw.copy()
    (out,) = processed(space, [raw], *SETTINGS[setting])
    np.testing.assert_allclose(out, [expected[setting]] * 2, rtol=1e-6)
    np.testing.assert_array_equal(raw, kept)
    if setting == 3:
        assert out.dtype == (space.dtype if isinstance(space, spaces.Box) else raw.dtype)
