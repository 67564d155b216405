"""States that begin as an empty nest, or with one in them: only when a policy has answered is it known what is in it.

policy: a nest of [n, …] ──in_rows──▶ n nests, as objects, in buffers and batches ──in_one──▶ policy: a nest of [n, …]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from swath.rollout.spaces import Array
from swath.rollout_workers.batches.leaves import as_array, object_array
from swath.rollout_workers.nests import leaves_of, map_nest


def boxed(state: Any) -> Array:
    """The state as one object, an array of no dimension."""
    box = np.empty((), dtype=object)
    box[()] = state
    return box


def in_rows(state: Any, n_rows: int) -> Array:
    """The state of each row as an object, of a nest of arrays `[n, …]`."""
    arrays = map_nest(lambda leaf: np.array(as_array(leaf)), state)
    return object_array([map_nest(lambda leaf, row=row: leaf[row], arrays) for row in range(n_rows)])


def in_one(rows: Sequence[Any] | Array) -> Any:
    """One nest of arrays `[n, …]`, of the state of each row; zeros for those that have less in it than others."""
    sizes = [len(leaves_of(row)) for row in rows]
    fullest = rows[int(np.argmax(sizes))]
    nothing = map_nest(np.zeros_like, fullest)
    filled = [row if size == max(sizes) else nothing for row, size in zip(rows, sizes, strict=True)]
    return map_nest(lambda *leaves: np.stack(leaves), *filled)
