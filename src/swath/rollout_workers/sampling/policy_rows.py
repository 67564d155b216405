"""Observations and answers of a policy as rows, and how it is called.

An observation is kept once: the transition that led to it and the next one refer to the same row. A critic that is a
separate network is not called in each step, but for many rows at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from swath.rollout.hosts.base import Infos
from swath.rollout.hosts.results import info_of
from swath.rollout.spaces import Array, Leaves, build_value, packer, splitter
from swath.rollout_workers.batches.names import STATE_IN, STATE_OUT, ColumnNames, WantedColumns
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.filters import NoFilter
from swath.rollout_workers.nests import as_array, leaves_of, map_nest, nest_of, template_of
from swath.rollout_workers.policy import Policy
from swath.rollout_workers.processing import (
    NoPreprocessor,
    action_processor,
    answer_leaves,
    check_actions,
    mask_reader,
    reward_clip,
)

# In the place of a row or a policy: there is none.
NONE = -1

# Infos that came with observations: the infos of several envs, and a position in them; empty if there are none.
AgentInfos: TypeAlias = Sequence[tuple[Infos, int]]
_NO_INFO: tuple[Infos, int] = (), 0

# Positions in a sequence.
Which: TypeAlias = slice | Sequence[int]
_ALL = slice(None)

# Fields of slots and transitions that are rows of observations, and of answers.
OBSERVATION_ROWS, ANSWER_ROWS = ("row", "acted"), ("answer", "before")

# Optional columns that are a field of slots and transitions.
OPTIONAL_FIELDS = {ColumnNames.PREV_REWARDS: "prev_reward", ColumnNames.ENV_ID: "env"}

# Methods by which a policy acts: with arguments, or with one dict of columns; its class overrides one of them.
_METHODS = "compute_actions", "compute_actions_from_input_dict"

_FIRST_ROOM, _VALUES_AT_ONCE = 64, 256


def as_column(values: Array) -> Array:
    """Return a field of slots or transitions as a column: float64 becomes float32."""
    return np.ascontiguousarray(values, np.float32 if values.dtype == np.float64 else None)


class Columns:
    """Arrays `[n, …]` that grow by rows; `keep` frees the rows that are no longer needed.

    Attributes:
        count: n.
    """

    def __init__(self) -> None:
        self.count, self._columns = 0, list[Array]()
        self._numbers = np.arange(0)  # of all rows that there is room for

    def append(self, leaves: Leaves) -> Array:
        """Add as many rows as the first leaf has; return their numbers, to be read only.

        Raises:
            ValueError: a leaf is of another length, or its rows have another shape or dtype than before.
        """
        start, stop = self.count, self.count + len(leaves[0])
        if stop > len(self._numbers):
            self._numbers = np.arange(max(stop, 2 * len(self._numbers), _FIRST_ROOM))
            room, old = len(self._numbers), self._columns or leaves
            self._columns = [np.resize(leaf[:start], (room, *leaf.shape[1:])) for leaf in old]
        for column, leaf in zip(self._columns, leaves, strict=True):
            rows = column[start:stop]
            if leaf.shape != rows.shape or leaf.dtype != rows.dtype:
                now, before = (f"{array.dtype} of shape {array.shape}" for array in (leaf, rows))
                raise ValueError(f"values are {now}; before they were {before} for as many rows")
            rows[...] = leaf
        self.count = stop
        return self._numbers[start:stop]

    def end_with(self, values: Array) -> None:
        """Write values into the last rows of the last column."""
        self._columns[-1][self.count - len(values) : self.count] = values

    def take(self, rows: Array) -> Leaves:
        """Return copies of rows."""
        return [column.take(rows, axis=0) for column in self._columns]

    def keep(self, needed: Array) -> Array:
        """Keep these rows only; return the new place of each row, with `NONE` at the end."""
        kept = np.unique(needed[needed != NONE])
        places = np.full(self.count + 1, NONE)
        places[kept] = np.arange(len(kept))
        for column in self._columns:
            column[: len(kept)] = column[kept]
        self.count = len(kept)
        return places


class PolicyRows:
    """One policy, with the rows of its observations and answers.

    Args:
        worker: has the policy.
        policy_id: of the policy.
        number: by which slots refer to it.

    Attributes:
        policy: the policy.
        clip: clips rewards; None: they stay unchanged.
        wanted: optional columns that it reads, and that its batches have.
        process: turns action leaves into the envs' actions; None: they are the same.
        split: splits action leaves into one action per agent.

    Raises:
        ValueError: it requires a view that is not served, or its initial states are empty.
    """

    def __init__(self, worker: Any, policy_id: str, number: int) -> None:
        setting, space = partial(worker.policy_setting, policy_id), worker.policy_dict[policy_id].action_space
        self.policy_id, self.policy, self.number = policy_id, worker.policy_map[policy_id], number
        self._preprocessor, self._filter = worker.preprocessors[policy_id], worker.filters[policy_id]
        self._setting, self._filters = setting, worker.filters
        self.clip = reward_clip(setting("clip_rewards"))
        self.process = action_processor(space, normalize=setting("normalize_actions"), clip=setting("clip_actions"))
        self.split, self._pack = splitter(space, writable=False), packer(self._preprocessor.leaves)
        self.wanted = WantedColumns.of(self.policy.view_requirements)
        method = next(name for base in type(self.policy).__mro__ for name in _METHODS if name in vars(base))
        self._by_dict = method == _METHODS[1]
        by_arguments = partial(Policy.compute_actions_from_input_dict, self.policy)
        self._compute = getattr(self.policy, method) if self._by_dict else by_arguments
        self._seen = template_of(self._preprocessor.observation_space)
        self._acted = answer_leaves(space, normalize=setting("normalize_actions"))
        self._mask = mask_reader(self._preprocessor.observation_space, space, None)
        self._initial = _initial_states(self.policy)
        self._first = {f"{STATE_OUT}{i}": state for i, state in enumerate(self._initial)}
        self._first[ColumnNames.ACTIONS] = build_value(
            space, (np.zeros(leaf.shape, leaf.dtype) for leaf in self._acted)
        )
        self._observations, self._answers = Columns(), Columns()
        self._infos: dict[int, tuple[Infos, int]] = {}
        self._unvalued: list[Array] = []  # rows of observations whose answers, the latest ones, lack values
        self._extras: dict[str, Any] = {}  # the extra columns of its first answer

    def prepare(self, explore: bool | None) -> None:
        """Read settings that may have changed since the last call; `explore=None`: by the settings."""
        self._filter = self._filters.get(self.policy_id, self._filter)  # a removed policy keeps its last one
        self._passes_on = isinstance(self._preprocessor, NoPreprocessor) and isinstance(self._filter, NoFilter)
        self._explore = self._setting("explore") if explore is None else explore
        self._looks_at_episodes = getattr(self.policy, "looks_at_episodes", True)
        self._values_later = getattr(self.policy, "values_later", False)

    def map_agent(self, agent_id: Any, episode: Any, **_: Any) -> str:  # noqa: ARG002  a mapping of all agents
        """Return the policy's id, for any agent."""
        return self.policy_id

    def select_observations(self, leaves: Leaves, which: Which) -> Any:
        """Return some observations `[n, …]` as the filter takes them; as leaves, if they stay unchanged.

        Raises:
            ValueError: one is not of the policy's space.
        """
        some = [leaf[which] for leaf in leaves]
        return some if self._passes_on else self._preprocessor.transform_batch(some)

    def pack_observations(self, values: Sequence[Any], which: Which) -> Any:
        """Return some observations of envs as the filter takes them; see `select_observations`."""
        chosen = values[which] if isinstance(which, slice) else [values[i] for i in which]
        return self.select_observations(self._pack(chosen), _ALL)

    def observe(self, observations: Any, infos: AgentInfos) -> Array:
        """Keep observations as the policy sees them, with their infos; return their rows.

        Raises:
            Exception: what the filter raised.
        """
        if not self._passes_on:
            try:
                filtered = self._filter(observations)
                if self._mask is not None:  # zeros in it have a meaning
                    self._mask(filtered)[...] = self._mask(observations)
                observations = leaves_of(filtered, self._seen)
            except Exception as error:
                error.add_note(f"raised by the observation filter of {self.policy_id!r}")
                raise
        rows = self._observations.append(observations)
        if infos:
            self._infos.update(zip(rows.tolist(), infos, strict=True))
        return rows

    def ask(self, slots: Any, ids: Array) -> Leaves:
        """Let the policy answer the latest observations of slots; keep the answers, and return the leaves of actions.

        Args:
            slots: all `Slots`.
            ids: the slots that act.

        Raises:
            ValueError: an answer that has not one row per slot, or does not fit earlier answers.
            Exception: what the policy raised.
        """
        policy, fields = self.policy, slots.fields
        rows = fields["row"][ids]
        columns = {ColumnNames.OBS: self.observations(rows)}
        if self._initial:
            columns |= self.states(fields["before"][ids])
        if self.wanted.input:
            columns |= self._optional(slots, ids)
        keywords = {"explore": self._explore, "timestep": policy.global_timestep, "episodes": None}
        if self._looks_at_episodes:
            keywords["episodes"] = [slots.episodes[env] for env in fields["env"][ids].tolist()]
        if self._values_later:
            keywords["with_values"] = False
        answer, states, extras = self._compute(SampleBatch(columns) if self._by_dict else columns, **keywords)
        if len(states) != len(self._initial):
            raise ValueError(f"{self.policy_id!r} answered {len(states)} states; its initial ones are {self._initial}")
        actions = check_actions(type(policy).__name__, self._acted, answer, len(rows))
        if states:
            extras = {**extras, **{f"{STATE_OUT}{i}": state for i, state in enumerate(states)}}
        if self._values_later:
            extras = {**extras, ColumnNames.VF_PREDS: np.zeros(len(rows), np.float32)}
        fields["answer"][ids] = self._answers.append([*actions, *self._flat(extras)])
        fields["acted"][ids], fields["version"][ids] = rows, slots.version
        if self._values_later:
            self._unvalued.append(rows)
        return actions

    def add_values(self) -> None:
        """Compute the values of the observations that were acted on since the last call."""
        if self._unvalued:
            rows = np.concatenate(self._unvalued)
            parts = np.split(rows, range(_VALUES_AT_ONCE, len(rows), _VALUES_AT_ONCE))
            values = [self.policy.compute_values({ColumnNames.OBS: self.observations(part)}) for part in parts]
            self._answers.end_with(np.concatenate(values))
            self._unvalued = []

    def observations(self, rows: Array) -> Any:
        """Return observations, `[n, …]`."""
        return nest_of(self._seen, self._observations.take(rows))

    def infos_at(self, rows: Array) -> list[Mapping[str, Any]]:
        """Return the infos that came with observations."""
        return [self.info_at(row) for row in rows.tolist()] if self._infos else [{}] * len(rows)

    def info_at(self, row: int) -> Mapping[str, Any]:
        """Return the info that came with an observation."""
        return info_of(*self._infos.get(row, _NO_INFO))

    def answers(self, rows: Array) -> dict[str, Any]:
        """Return the columns of the policy's answers in these rows."""
        leaves = iter(self._answers.take(rows))
        layout = {ColumnNames.ACTIONS: self._first[ColumnNames.ACTIONS], **self._extras}
        return {name: nest_of(first, leaves) for name, first in layout.items()}

    def states(self, before: Array) -> dict[str, Any]:
        """Return the columns of states before an answer that followed the answers in these rows."""
        return {f"{STATE_IN}{i}": self.previous(before, f"{STATE_OUT}{i}") for i in range(len(self._initial))}

    def previous(self, rows: Array, name: str) -> Any:
        """Return a column of actions or states in rows; where a row is `NONE`, what an episode begins with."""
        missing, initial = rows == NONE, self._first[name]
        if missing.all():
            return map_nest(lambda leaf: np.repeat(leaf[None], len(rows), axis=0), initial)
        column = self.answers(np.where(missing, 0, rows))[name]
        if missing.any():
            map_nest(lambda leaf, value: leaf.__setitem__(missing, value), column, initial)
        return column

    def keep(self, records: Sequence[tuple[Array, Array]]) -> None:
        """Keep only the rows to which records refer, by table and mask; write the new places into the records."""
        for columns, names in ((self._observations, OBSERVATION_ROWS), (self._answers, ANSWER_ROWS)):
            fields = [(table[name], mask) for table, mask in records for name in names]
            places = columns.keep(np.concatenate([field[mask] for field, mask in fields]))
            for field, mask in fields:
                field[mask] = places[field[mask]]
            if columns is self._observations:
                self._infos = {int(places[row]): info for row, info in self._infos.items() if places[row] != NONE}

    def _optional(self, slots: Any, ids: Array) -> dict[str, Any]:
        """Return the optional columns for slots."""
        fields, wanted = slots.fields, self.wanted.input
        columns: dict[str, Any] = {
            name: as_column(fields[field][ids]) for name, field in OPTIONAL_FIELDS.items() if name in wanted
        }
        if ColumnNames.PREV_ACTIONS in wanted:
            columns[ColumnNames.PREV_ACTIONS] = self.previous(fields["before"][ids], ColumnNames.ACTIONS)
        if ColumnNames.INFOS in wanted:
            columns[ColumnNames.INFOS] = self.infos_at(fields["row"][ids])
        if ColumnNames.AGENT_ID in wanted:
            columns[ColumnNames.AGENT_ID] = slots.agents[ids]
        return columns

    def _flat(self, answer: dict[str, Any]) -> Leaves:
        """Return the leaves of an answer besides actions, in the order of the first answer.

        Raises:
            ValueError: the first answer had other columns.
        """
        extras = self._extras = self._extras or answer
        if answer.keys() != extras.keys():
            raise ValueError(f"{self.policy_id!r} answered the extra columns {[*answer]}; before they were {[*extras]}")
        return [as_array(leaf) for name, first in extras.items() for leaf in leaves_of(answer[name], first)]


def _initial_states(policy: Any) -> list[Any]:
    """Return the states with which episodes begin.

    Raises:
        ValueError: one is an empty structure.
    """
    initial = policy.get_initial_state()
    for state in initial:
        if not leaves_of(state):
            raise ValueError(f"get_initial_state() gives {state!r}; begin with arrays of the shapes of later states")
    return [map_nest(as_array, state) for state in initial]
