"""A policy, with all that is kept of the agents for which it acts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space

from swath.rollout.spaces import Array, Leaves, action_leaves, packer, splitter
from swath.rollout_workers.actions import ActionProcessor, answered_actions
from swath.rollout_workers.batches.leaves import as_array, object_array
from swath.rollout_workers.batches.names import STATE_IN, STATE_OUT, ColumnNames
from swath.rollout_workers.filters.base import Filter
from swath.rollout_workers.nests import map_nest, nest_of, template_of
from swath.rollout_workers.policy import Actions, Policy
from swath.rollout_workers.preprocessors import Preprocessor
from swath.rollout_workers.sampling.asking import Wants, asked
from swath.rollout_workers.sampling.memory import filled
from swath.rollout_workers.sampling.multi_agent.ledger import Ledger
from swath.rollout_workers.sampling.multi_agent.seats import NO_ROW, Seat

_FIRST_ROOM = 64


class Stack:
    """A nest of arrays `[n, …]` that is written row by row, and whose room is used again.

    Args:
        what: the rows are, for messages.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._room = 0
        self._columns: Any = None

    def write(self, rows: slice | list[int], values: Any) -> None:
        """Put values in the place of rows, which there may not have been yet.

        Args:
            rows: where to.
            values: a nest of arrays, one entry per row.

        Raises:
            ValueError: they have another shape or structure than those before.
        """
        self._reserve(rows.stop if isinstance(rows, slice) else max(rows) + 1, values)
        try:
            _put_nest(self._columns, rows, values)
        except ValueError as error:
            raise ValueError(f"{self._what} do not fit those before: {error}") from error

    def take(self, rows: Array | slice | list[int]) -> Any:
        """Copies of rows, in a nest as it was written."""
        if isinstance(rows, slice):
            return map_nest(lambda column: column[rows].copy(), self._columns)
        return map_nest(lambda column: column[rows], self._columns)  # an index copies

    def keep(self, rows: Array) -> None:
        """Only these rows, in rising order, stay as the first ones; the others are written over."""
        there = rows[rows < self._room]  # nothing was written yet to those behind
        if len(there):
            map_nest(lambda column: _put(column, slice(0, len(there)), column[there]), self._columns)

    def _reserve(self, n_rows: int, like: Any) -> None:
        if n_rows <= self._room and self._columns is not None:
            return
        room = max(n_rows, 2 * self._room, _FIRST_ROOM)
        before = self._columns
        self._columns = map_nest(
            lambda leaf: np.zeros((room, *leaf.shape[1:]), leaf.dtype), like if before is None else before
        )
        if before is not None:
            map_nest(lambda column, old: _put(column, slice(0, len(old)), old), self._columns, before)
        self._room = room


def _put_nest(columns: Any, rows: slice | list[int], values: Any) -> None:
    """As quick as can be, for it is done in every step."""
    if isinstance(columns, np.ndarray):
        _put(columns, rows, np.asarray(values))
        return
    if len(columns) != len(values):
        raise ValueError(f"nested differently: {len(values)} parts, wanted {len(columns)}")
    for name, column in columns.items() if isinstance(columns, dict) else enumerate(columns):
        if isinstance(columns, dict) and name not in values:
            raise ValueError(f"there is no {name!r}")
        _put_nest(column, rows, values[name])


def _put(column: Array, rows: slice | list[int], values: Array) -> None:
    if values.shape[1:] != column.shape[1:]:
        raise ValueError(f"shape {values.shape[1:]} per row, wanted {column.shape[1:]}")
    column[rows] = values


@dataclass(frozen=True)
class Equipment:
    """What a worker has for a policy.

    Attributes:
        policy_id: its id.
        policy: it.
        action_space: of its agents.
        preprocessor: of observations.
        current_filter: the filter of the moment: another may take its place.
        processor: of actions.
        explore: whether its actions are sampled, if a call does not say so.
        clip: what becomes of rewards; None: nothing.
    """

    policy_id: str
    policy: Policy
    action_space: Space[Any]
    preprocessor: Preprocessor
    current_filter: Callable[[], Filter]
    processor: ActionProcessor
    explore: Callable[[], bool]
    clip: Callable[[Array], Array] | None


class Role:
    """What is kept of the agents of one policy: their observations, what it answered, and their transitions.

    Attributes:
        equipment: the policy, and what goes with it.
        wants: how it is asked, and which optional columns it reads.
        initial: its states at the begin of an episode.
        count: how many observations are kept.
        observations: processed ones, by row.
        outputs: columns that the policy answered, by the rows of the observations acted on.
        ledger: transitions that are closed and not handed out.
    """

    def __init__(self, equipment: Equipment) -> None:
        policy = equipment.policy
        self.equipment = equipment
        self.wants = Wants.of(policy)
        self.initial: list[Any] = [map_nest(np.asarray, state) for state in filled(policy.get_initial_state())]
        self.count = 0
        self.observations = Stack(f"observations of the agents of {equipment.policy_id!r}")
        self.outputs = Stack(f"answers of the policy {equipment.policy_id!r}")
        self.ledger = Ledger()
        self._pack = packer(equipment.preprocessor.leaves)
        self._space = equipment.action_space
        self._template = template_of(self._space)
        self._acted = action_leaves(self._space)
        self._split = splitter(self._space, writable=False)

    @property
    def policy_id(self) -> str:
        """The policy's id."""
        return self.equipment.policy_id

    def processed(self, raw: Sequence[Any]) -> Any:
        """Observations as envs return them, preprocessed, `[n, …]`.

        Raises:
            Exception: whatever comes of observations that are not of the policy's space.
        """
        return self.equipment.preprocessor.transform_batch(self._pack(raw))

    def keep(self, processed: Any, n_rows: int) -> range:
        """Filter observations, and keep them: their rows.

        Raises:
            Exception: what the filter raised.
        """
        rows = slice(self.count, self.count + n_rows)
        self.observations.write(rows, map_nest(np.asarray, self.equipment.current_filter()(processed)))
        self.count += n_rows
        return range(rows.start, rows.stop)

    def keep_rows(self, rows: Array) -> None:
        """Only these rows stay, as the first ones."""
        self.observations.keep(rows)
        self.outputs.keep(rows)
        self.count = len(rows)

    def ask(self, seats: Sequence[Seat], *, explore: bool | None) -> Leaves:
        """Let the policy answer the latest observations of these seats, and keep what it says: leaves of actions."""
        rows = [seat.row for seat in seats]
        in_a_row = slice(rows[0], rows[0] + len(rows))
        where = in_a_row if rows == list(range(in_a_row.start, in_a_row.stop)) else rows
        answer, states, extra = self._ask(self._input(seats, where), seats, explore)
        if len(states) != len(self.initial):
            raise ValueError(f"{self.policy_id!r} answered {len(states)} states; its initial ones are {self.initial}")
        actions = answered_actions(type(self.equipment.policy).__name__, self._acted, answer, len(seats))
        answered = {**extra, **{f"{STATE_OUT}{i}": state for i, state in enumerate(states)}}
        checked = map_nest(partial(_checked, len(seats)), answered)
        self.outputs.write(where, {ColumnNames.ACTIONS: nest_of(self._template, actions), **checked})
        return actions

    def deal(self, actions: Leaves) -> Sequence[Any]:
        """Leaves of actions as envs get them, one read-only action per row."""
        return self._split(self.equipment.processor(actions))

    def answers(self, rows: Array) -> dict[str, Any]:
        """The columns of what the policy answered to the observations in these rows."""
        columns: dict[str, Any] = self.outputs.take(rows)
        return columns

    def states_at(self, rows: Array | list[int]) -> list[Any]:
        """The states behind these rows, `[n, …]`; the initial ones for no row."""
        return [self._answered(f"{STATE_OUT}{i}", rows, state) for i, state in enumerate(self.initial)]

    def actions_at(self, rows: Array | list[int]) -> Any:
        """The actions in these rows, `[n, …]`; zeros for no row."""
        none = nest_of(self._template, [np.zeros(leaf.shape, leaf.dtype) for leaf in self._acted])
        return self._answered(ColumnNames.ACTIONS, rows, none)

    def _answered(self, name: str, rows: Array | list[int], default: Any) -> Any:
        """A column of what was answered in rows; the default for no row."""
        index = np.asarray(rows)
        missing = index == NO_ROW
        if missing.all():
            return map_nest(lambda leaf: np.repeat(leaf[None], len(index), axis=0), default)
        column = self.outputs.take(np.where(missing, 0, index))[name]
        if missing.any():
            map_nest(lambda leaf, value: leaf.__setitem__(missing, value), column, default)
        return column

    def _input(self, seats: Sequence[Seat], rows: slice | list[int]) -> dict[str, Any]:
        """The columns that the policy reads."""
        columns = {ColumnNames.OBS: self.observations.take(rows)}
        if self.initial or self.wants.seen:
            before = [seat.before for seat in seats]
            columns |= {f"{STATE_IN}{i}": state for i, state in enumerate(self.states_at(before))}
            columns |= {name: self._optional(name, seats, before) for name in self.wants.seen}
        return columns

    def _optional(self, name: str, seats: Sequence[Seat], before: list[int]) -> Any:
        if name == ColumnNames.PREV_ACTIONS:
            return self.actions_at(before)
        if name == ColumnNames.PREV_REWARDS:
            return np.array([seat.paid for seat in seats], dtype=np.float32)
        if name == ColumnNames.ENV_ID:
            return np.array([seat.play.env for seat in seats])
        if name == ColumnNames.AGENT_ID:
            return object_array([seat.agent for seat in seats])
        return [seat.info for seat in seats]

    def _ask(self, columns: dict[str, Any], seats: Sequence[Seat], explore: bool | None) -> Actions:
        policy = self.equipment.policy
        episodes = [seat.play.episode for seat in seats] if self.wants.episodes else None
        explores = self.equipment.explore() if explore is None else explore
        return asked(policy, self.wants, columns, explores, episodes)


def _checked(n_rows: int, answer: Any) -> Array:
    """An answer as an array.

    Raises:
        ValueError: it has not one row per observation.
    """
    array = as_array(answer)
    if array.shape[:1] != (n_rows,):
        raise ValueError(f"the policy answered an array of shape {array.shape} to {n_rows} observations")
    return array
