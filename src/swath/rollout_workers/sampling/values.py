"""The values of observations that a policy acted on, for policies that act without them: many rows cost less at once.

step   obs ──▶ actions           … and so on, until the call of `sample()` has its steps, or something raises
then   all obs of these steps ──▶ values, by the weights that acted
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from swath.rollout.spaces import Array
from swath.rollout_workers.batches.names import ColumnNames

PIECE = 512
"""Rows that are valued at once: few enough for what a network makes of them to stay in the caches."""


def values_of(policy: Any, n_rows: int, observations: Callable[[slice], Any]) -> Array:
    """The values `[n]` of observations.

    Args:
        policy: whose `compute_values` are asked for.
        n_rows: n, at least one.
        observations: gives some of these rows, a nest of arrays.
    """
    pieces = [slice(start, min(start + PIECE, n_rows)) for start in range(0, n_rows, PIECE)]
    return np.concatenate([policy.compute_values({ColumnNames.OBS: observations(piece)}) for piece in pieces])
