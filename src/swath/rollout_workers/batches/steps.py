"""Rows of several policies by the env steps that they are from.

policy  a a a b b        sorted by episode, time, agent:   a b │ a b │ a
t       0 1 2 0 1                           env step:        0     1    2
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from swath.rollout_workers.batches.columns import Columns, SomeColumns
from swath.rollout_workers.batches.leaves import Array, as_array
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.batches.rows import rows_at
from swath.rollout_workers.batches.sequences import place_of_rows

_SORTED_BY = (ColumnNames.EPS_ID, ColumnNames.T, ColumnNames.AGENT_INDEX)


@dataclass(frozen=True)
class RowsByStep:
    """All rows in order, `[n]` each: whose they are, which of that policy's, and the number of their env step."""

    policy: Array
    row: Array
    step: Array

    @classmethod
    def of(cls, batches: list[Columns]) -> RowsByStep:
        """The rows of these batches."""
        episodes, times, agents = (np.concatenate([_column(batch, name) for batch in batches]) for name in _SORTED_BY)
        episode = np.unique(episodes, return_inverse=True)[1]
        order = np.lexsort((agents, times, episode))
        is_new = (np.diff(episode[order], prepend=-1) != 0) | (np.diff(times[order], prepend=-1) != 0)
        counts = [batch.count for batch in batches]
        policy, row = np.repeat(np.arange(len(batches)), counts), np.concatenate([np.arange(n) for n in counts])
        return cls(policy[order], row[order], np.cumsum(is_new) - 1)

    @property
    def n_steps(self) -> int:
        """How many env steps there are."""
        return int(self.step[-1]) + 1


def by_steps(batches: Mapping[str, SomeColumns], k: int) -> Iterator[tuple[dict[str, SomeColumns], int]]:
    """The rows of each k env steps, per policy that has any, and how many steps they are.

    Raises:
        KeyError: a policy's batch lacks `eps_id`, `t` or `agent_index`.
    """
    filled = {pid: batch for pid, batch in batches.items() if batch.count}
    if not filled:
        return
    rows = RowsByStep.of(list(filled.values()))
    for first in range(0, rows.n_steps, k):
        start, stop = np.searchsorted(rows.step, (first, first + k))
        policy, row = rows.policy[start:stop], rows.row[start:stop]
        found = {pid: row[policy == number] for number, pid in enumerate(filled)}
        part = {pid: rows_at(filled[pid], index) for pid, index in found.items() if len(index)}
        yield part, min(k, rows.n_steps - first)


def _column(batch: Columns, name: str) -> Array:
    if name not in batch:
        raise KeyError(f"timeslices need {_SORTED_BY}; a policy's batch lacks {name!r}")
    return as_array(dict.__getitem__(batch, name))[place_of_rows(batch)]
