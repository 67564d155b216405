"""Actions on their way from the policy to the envs, and rewards on their way back."""

import numpy as np
import pytest
from gymnasium import spaces

from swath.rollout_workers.actions import action_processor

INF = np.inf
BOX = spaces.Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))
HALF_OPEN = spaces.Box(np.array([-2, 0], np.float32), np.array([2, INF], np.float32))
COUNT = spaces.Box(3, 9, (2,), np.int64)
BYTES = spaces.Box(250, 255, (2,), np.uint8)

# action space, the policy's action, what the env gets: unchanged, normalised, clipped, both
TABLE = [
    (BOX, [0.0, 0.0], [0.0, 0.0], [0.0, 5.0], [0.0, 0.0], [0.0, 5.0]),
    (BOX, [-1.0, 1.0], [-1.0, 1.0], [-2.0, 10.0], [-1.0, 1.0], [-2.0, 10.0]),
    (BOX, [3.0, -3.0], [3.0, -3.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]),
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
