"""Chunks: the rows of one episode in one batch that one version of the policy made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from swath.rollout.spaces import Array
from swath.rollout_workers.batches.names import ColumnNames

_TRAINED = "training_enabled"


class UnrollIds:
    """Gives numbers to chunks, none of them twice.

    Args:
        base: below all that are given.
    """

    def __init__(self, base: int) -> None:
        self._next = base

    def give(self, n: int) -> Array:
        """The next n numbers, int64."""
        given = np.arange(self._next, self._next + n)
        self._next += n
        return given


def chunk_starts(trajectories: Array, versions: Array) -> Array:
    """The first rows of chunks, `[k]`.

    Args:
        trajectories: a number of what each row is part of, equal ones one behind the other, `[n]`.
        versions: of the policy that acted, `[n]`.
    """
    changes = (trajectories[1:] != trajectories[:-1]) | (versions[1:] != versions[:-1])
    return np.concatenate([[0], np.flatnonzero(changes) + 1])


def number_chunks(columns: dict[str, Any], unrolls: UnrollIds) -> Array:
    """Write `unroll_id`; the first rows of chunks."""
    starts = chunk_starts(columns[ColumnNames.EPS_ID], columns[ColumnNames.POLICY_VERSION])
    lengths = np.diff(starts, append=len(columns[ColumnNames.EPS_ID]))
    columns[ColumnNames.UNROLL_ID] = np.repeat(unrolls.give(len(starts)), lengths)
    return starts


def is_trained(info: Any) -> bool:
    """Whether rows are trained on, of which this is what the env said with the last one."""
    return not isinstance(info, Mapping) or bool(info.get(_TRAINED, True))
