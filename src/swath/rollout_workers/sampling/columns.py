"""From rows that are taken out of blocks to the columns of a batch.

A whole block is handed out as it is: `[B, T, …]` read as `[B·T, …]`. Else each column is one concatenation of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from swath.rollout.hosts.returned import info_of
from swath.rollout.spaces import Array
from swath.rollout_workers.batches.leaves import object_array
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.episode import LONE_AGENT
from swath.rollout_workers.nests import nest_of
from swath.rollout_workers.sampling.block import Block
from swath.rollout_workers.sampling.waiting import Run

Read = Callable[[Block], Any]
"""An array `[B, T, …]` of a block."""


class Taken:
    """Rows that are about to be handed out.

    Args:
        runs: where they are, by env, then time.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.count = sum(len(run) for run in runs)
        self._whole = _whole_block(runs)

    def column(self, read: Read) -> Any:
        """The rows of an array, `[n, …]`."""
        if self._whole is not None:
            array = read(self._whole)
            return array.reshape(-1, *array.shape[2:])
        return np.concatenate([read(run.block)[run.env, run.start : run.stop] for run in self.runs])

    def per_run(self, value: Callable[[Run], int]) -> Array:
        """A number per run, in each of its rows."""
        return np.repeat(np.array([value(run) for run in self.runs]), [len(run) for run in self.runs])

    def infos(self) -> list[Any]:
        """What the envs said beside."""
        return [info_of(run.block.infos[t], run.env) for run in self.runs for t in range(run.start, run.stop)]

    def info_at(self, row: int) -> Any:
        """What the env said beside this row."""
        for run in self.runs:
            if row < len(run):
                return info_of(run.block.infos[run.start + row], run.env)
            row -= len(run)
        raise IndexError(f"there are {self.count} rows")


def columns_of(taken: Taken, template: Any, kept: frozenset[str]) -> dict[str, Any]:
    """All columns but `unroll_id`, which is for whoever knows the chunks.

    Args:
        taken: the rows; at least one.
        template: a nest of the structure of observations.
        kept: optional columns that are wanted.
    """
    first = taken.runs[0].block
    n_leaves = len(first.rows.observation)
    layout = first.layout
    observation = [taken.column(lambda block, i=i: block.rows.observation[i]) for i in range(n_leaves)]  # type: ignore[misc]
    following = [taken.column(lambda block, i=i: block.rows.next_observation[i]) for i in range(n_leaves)]  # type: ignore[misc]
    outputs: list[Any] = [None] * layout.skip
    outputs += [taken.column(lambda block, i=i: block.rows.outputs[i]) for i in range(layout.skip, layout.size)]  # type: ignore[misc]
    columns = {
        ColumnNames.OBS: nest_of(template, observation),
        ColumnNames.NEXT_OBS: nest_of(template, following),
        **layout.columns(outputs),
        ColumnNames.REWARDS: taken.column(lambda block: block.reward),
        ColumnNames.TERMINATEDS: taken.column(lambda block: block.rows.terminated),
        ColumnNames.TRUNCATEDS: taken.column(lambda block: block.rows.truncated),
        ColumnNames.T: taken.column(lambda block: block.counts),
        ColumnNames.EPS_ID: taken.column(lambda block: block.ids),
        ColumnNames.AGENT_INDEX: np.zeros(taken.count, dtype=np.int64),
        ColumnNames.POLICY_VERSION: taken.per_run(lambda run: run.block.version),
    }
    return _with_optional(columns, taken, kept)


def _with_optional(columns: dict[str, Any], taken: Taken, kept: frozenset[str]) -> dict[str, Any]:
    for name in (ColumnNames.PREV_ACTIONS, ColumnNames.PREV_REWARDS):
        if name not in kept:
            columns.pop(name, None)
    made: dict[str, Callable[[], Any]] = {
        ColumnNames.INFOS: lambda: object_array(taken.infos()),
        ColumnNames.ENV_ID: lambda: taken.per_run(lambda run: run.env),
        ColumnNames.AGENT_ID: lambda: object_array([LONE_AGENT] * taken.count),
    }
    columns.update({name: make() for name, make in made.items() if name in kept})
    return columns


def _whole_block(runs: Sequence[Run]) -> Block | None:
    """The block of which these runs are all rows, in order."""
    block = runs[0].block
    n_envs, n_steps = block.shape
    everything = len(runs) == n_envs and all(
        run.block is block and run.env == env and run.start == 0 and run.stop == n_steps for env, run in enumerate(runs)
    )
    return block if everything else None
