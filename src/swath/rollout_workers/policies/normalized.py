"""From actions as envs get them back to what a policy answered."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from swath.rollout.spaces import Array


def as_answered(space: Space[Any], actions: Array) -> Array:
    """The inverse of what the setting `normalize_actions` does to actions `[n, …]`, where they were not clipped."""
    if not isinstance(space, spaces.Box) or not space.is_bounded("both"):
        return actions
    if np.issubdtype(space.dtype, np.integer):
        return actions.astype(np.int64) - space.low
    span = space.high.astype(np.float64) - space.low
    scaled: Array = 2 * (actions - space.low) / np.where(span > 0, span, 1) - 1
    return scaled.astype(space.dtype)
