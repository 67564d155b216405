"""The values of observations that a policy acted on, for policies that act without them: many rows cost less at once.

step   obs ──▶ actions           … and so on, until the call of `sample()` has its steps, or something raises
then   all obs of these steps ──▶ values, by the weights that acted
"""

from __future__ import annotations

from typing import Any

import numpy as np

from swath.rollout.spaces import Array
from swath.rollout_workers.batches.leaves import leaves, rows_of
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.nests import map_nest

PIECE = 512
"""Rows that are valued at once: few enough for what a network makes of them to stay in the caches."""


def values_of(policy: Any, observations: Any) -> Array:
    """The values `[n]` of observations, a nest of arrays `[n, …]`."""
    n = rows_of(next(leaf for _, leaf in leaves(observations)))
    assert n is not None
    pieces = [_piece(observations, slice(start, start + PIECE)) for start in range(0, n, PIECE)]
    return np.concatenate([policy.compute_values({ColumnNames.OBS: piece}) for piece in pieces])


def _piece(observations: Any, rows: slice) -> Any:
    return map_nest(lambda leaf: leaf[rows], observations)
