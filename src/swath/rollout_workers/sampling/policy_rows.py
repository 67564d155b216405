"""What a policy has seen and answered, as rows; and how it is asked.

An observation is kept once: the transition that led to it and the one that begins with it refer to the same row. The
values of a critic that is a network of its own are not asked for in each step, but of many rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from swath.rollout.spaces import Array, Leaves, action_leaves, packer
from swath.rollout_workers.actions import ActionProcessor, answered_actions, reward_clip
from swath.rollout_workers.batches.names import BEFORE, STATE_IN, STATE_OUT, ColumnNames, WantedColumns
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.episode import NONE, Slots
from swath.rollout_workers.filters import NoFilter
from swath.rollout_workers.nests import as_array, has_empty, leaves_of, map_nest, nest_of, template_of
from swath.rollout_workers.policy import Actions, states_in
from swath.rollout_workers.preprocessors import NoPreprocessor

_FIRST_ROOM = 64
_VALUES_AT_ONCE = 256
_METHODS = "compute_actions", "compute_actions_from_input_dict"
"""How a policy is asked: with arguments, or with one dict of columns; whichever its class overrides."""

_FIELDS = {ColumnNames.PREV_REWARDS: "paid", ColumnNames.ENV_ID: "env"}
"""Columns that are a field of slots."""

InfoOf: TypeAlias = Callable[[int, Any], Any]
Rows: TypeAlias = Array | slice

Form: TypeAlias = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and dtype of a row."""


class Columns:
    """Arrays `[n, …]` that are written some rows at a time, and whose room is used again."""

    def __init__(self) -> None:
        self._columns: Leaves = []
        self._room = 0

    def write(self, rows: Rows, stop: int, leaves: Leaves) -> None:
        """Put values in the place of rows, all of which are below `stop`."""
        if stop > self._room or not self._columns:
            self._reserve(stop, leaves)
        for column, leaf in zip(self._columns, leaves, strict=True):
            column[rows] = leaf

    def take(self, rows: Array) -> Leaves:
        """Copies of rows."""
        return [column.take(rows, axis=0) for column in self._columns]

    def keep(self, rows: Array) -> None:
        """Only these rows, in rising order, stay as the first ones; the others are written over."""
        there = rows[rows < self._room]
        for column in self._columns:
            column[: len(there)] = column[there]

    def _reserve(self, stop: int, like: Leaves) -> None:
        room, old = max(stop, 2 * self._room, _FIRST_ROOM), self._columns
        self._columns = [np.zeros((room, *leaf.shape[1:]), leaf.dtype) for leaf in old or like]
        for column, before in zip(self._columns, old, strict=bool(old)):
            column[: self._room] = before
        self._room = room


class PolicyRows:
    """One policy with all that is kept of what it has seen and answered.

    Args:
        worker: whose policy it is.
        policy_id: which.
        number: by which slots refer to it.

    Attributes:
        policy: it.
        clip: what becomes of rewards; None: nothing.
        wanted: optional columns that it reads, and that its batches have.
        sees_episodes: it is shown `Episode` objects.
        processor: of actions.
        count: how many observations are kept.

    Raises:
        ValueError: it requires a view that is not served, or begins with states that are empty.
    """

    def __init__(self, worker: Any, policy_id: str, number: int) -> None:
        setting, space = partial(worker.setting, policy_id), worker.policy_dict[policy_id].action_space
        self.policy_id, self.policy, self.number, self.space = policy_id, worker.policy_map[policy_id], number, space
        self.preprocessor, self._filter = worker.preprocessors[policy_id], worker.filters[policy_id]
        self._filters = worker.filters
        self.clip = reward_clip(setting("clip_rewards"))
        self.processor = ActionProcessor(space, normalize=setting("normalize_actions"), clip=setting("clip_actions"))
        self.wanted = WantedColumns.of(self.policy.view_requirements)
        self.sees_episodes = bool(getattr(self.policy, "looks_at_episodes", True))
        asked = next(name for base in type(self.policy).__mro__ for name in _METHODS if name in vars(base))
        self._by_dict = asked == _METHODS[1]
        self.count = 0
        self._explores = partial(setting, "explore")
        self._pack = packer(self.preprocessor.leaves)
        self._changes_nothing = isinstance(self.preprocessor, NoPreprocessor)
        self._seen = template_of(self.preprocessor.observation_space)
        self.acted, self._action = action_leaves(space), template_of(space)
        self._initial = _initial_states(self.policy)
        self._observations = Columns()
        self._answers = Columns()
        self._values = Columns()
        self._unvalued: list[Rows] = []
        self._forms: list[Form] = []
        self._plain: list[Any] | None = None
        self._layout: dict[str, Any] = {}

    @property
    def remembers(self) -> bool:
        """Whether it is shown what it has answered before."""
        return bool(self._initial or self.wanted.input.intersection(BEFORE))

    @property
    def passes_on(self) -> bool:
        """Whether it sees what the envs show."""
        self._filter = self._filters.get(self.policy_id, self._filter)  # the last one of a policy that is removed
        return self._changes_nothing and isinstance(self._filter, NoFilter)

    def packed(self, raw: Sequence[Any]) -> Leaves:
        """Observations as envs return them, as leaves `[n, …]`.

        Raises:
            Exception: whatever comes of observations that are not of the policy's space.
        """
        leaves = self._pack(raw)
        for error in self.preprocessor.strays(leaves).values():
            raise error
        return leaves

    def filtered(self, raw: Leaves) -> Leaves:
        """Observations, none of which is a stray, as the policy sees them.

        Raises:
            Exception: what the filter raised.
        """
        if self.passes_on:
            return raw
        seen = self.preprocessor.transform_batch(raw)
        try:
            return leaves_of(self._filter(seen), self._seen)
        except Exception as error:
            error.add_note(f"raised by the observation filter of {self.policy_id!r}")
            raise

    def keep_observed(self, leaves: Leaves) -> int:
        """Keep what the policy sees: the first of the rows."""
        start, stop = self.count, self.count + len(leaves[0])
        self._observations.write(slice(start, stop), stop, leaves)
        self.count = stop
        return start

    def ask(self, seen: Leaves, rows: Rows, slots: Slots, ids: Array, info_of: InfoOf, explore: bool | None) -> Leaves:
        """Let the policy answer the latest observations of these slots, and keep what it answers: leaves of actions.

        Args:
            seen: the observations, which are kept in these rows.
            rows: where they are.
            slots: who acts.
            ids: of those who do.
            info_of: what an env said to an agent with its latest observation.
            explore: whether actions are sampled; None: as the policy's settings say.

        Raises:
            ValueError: an answer that has not one row per slot, or does not fit those before.
            Exception: what the policy raised.
        """
        columns = {ColumnNames.OBS: nest_of(self._seen, seen)}
        if self._initial:
            columns |= self.states(slots.table["before"][ids])
        for name in self.wanted.input:
            columns[name] = self._optional(name, slots, ids, info_of)
        policy = self.policy
        how = {
            "explore": self._explores() if explore is None else explore,
            "timestep": policy.global_timestep,
            "episodes": self._episodes_of(slots, ids) if self.sees_episodes else None,
        }
        if getattr(policy, "values_later", False):
            how["with_values"] = False
            self._unvalued.append(rows)
        answer, states, extras = self._asked(columns, how)
        if len(states) != len(self._initial):
            raise ValueError(f"{self.policy_id!r} answered {len(states)} states; its initial ones are {self._initial}")
        actions = answered_actions(type(policy).__name__, self.acted, answer, len(ids))
        if states:
            extras = {**extras, **{f"{STATE_OUT}{i}": state for i, state in enumerate(states)}}
        self._answers.write(rows, self.count, [*actions, *self._flat(extras, len(ids))])
        return actions

    def add_values(self) -> None:
        """Ask for the values of the observations that were acted on since the last call."""
        acted = [np.arange(each.start, each.stop) if isinstance(each, slice) else each for each in self._unvalued]
        rows = np.concatenate([np.empty(0, np.int64), *acted])
        for start in range(0, len(rows), _VALUES_AT_ONCE):
            part = rows[start : start + _VALUES_AT_ONCE]
            self._values.write(part, self.count, [self.policy.compute_values({ColumnNames.OBS: self.observed(part)})])
        self._unvalued = []

    def observed(self, rows: Array) -> Any:
        """Observations, `[n, …]`."""
        return nest_of(self._seen, self.seen(rows))

    def seen(self, rows: Array) -> Leaves:
        """The leaves of observations."""
        return self._observations.take(rows)

    def answered(self, rows: Array) -> dict[str, Any]:
        """The columns of what the policy answered to the observations in these rows."""
        leaves = iter(self._answers.take(rows))
        columns = {name: nest_of(template, leaves) for name, template in self._layout.items()}
        return columns | dict(zip([ColumnNames.VF_PREDS], self._values.take(rows), strict=False))

    def states(self, before: Array) -> dict[str, Any]:
        """The columns of states before an answer, if the one before that was to these rows."""
        return {
            f"{STATE_IN}{i}": self._after(before, f"{STATE_OUT}{i}", state) for i, state in enumerate(self._initial)
        }

    def actions_at(self, before: Array) -> Any:
        """The actions in these rows, `[n, …]`; zeros for no row."""
        none = nest_of(self._action, [np.zeros(leaf.shape, leaf.dtype) for leaf in self.acted])
        return self._after(before, ColumnNames.ACTIONS, none)

    def keep(self, needed: Array) -> Array:
        """Keep these rows only: where each row is from now on, and `NONE` at the end."""
        kept = np.unique(needed[needed >= 0])
        moved = np.full(self.count + 1, NONE)
        moved[kept] = np.arange(len(kept))
        for columns in (self._observations, self._answers, self._values):
            columns.keep(kept)
        self.count = len(kept)
        return moved

    def _asked(self, columns: dict[str, Any], how: dict[str, Any]) -> Actions:
        """What the policy answers to columns, by the one of its two methods that its class defines."""
        answer: Actions
        if self._by_dict:
            answer = self.policy.compute_actions_from_input_dict(SampleBatch(columns), **how)
            return answer
        answer = self.policy.compute_actions(
            columns[ColumnNames.OBS],
            states_in(columns) if self._initial else [],
            prev_action_batch=columns.get(ColumnNames.PREV_ACTIONS),
            prev_reward_batch=columns.get(ColumnNames.PREV_REWARDS),
            info_batch=columns.get(ColumnNames.INFOS),
            **how,
        )
        return answer

    def _episodes_of(self, slots: Slots, ids: Array) -> list[Any]:
        return [slots.episodes[env] for env in slots.table["env"][ids].tolist()]

    def _flat(self, answered: dict[str, Any], n_rows: int) -> Leaves:
        """The leaves of what was answered beside actions, in the order of the first answer."""
        misfits = f"answers of the policy {self.policy_id!r} do not fit those before"
        if not self._layout:
            self._layout = {ColumnNames.ACTIONS: self._action, **answered}
        plain = [(name, getattr(leaf, "shape", None), getattr(leaf, "dtype", None)) for name, leaf in answered.items()]
        if plain == self._plain:
            return [*answered.values()]
        if len(answered) != len(self._layout) - 1 or not answered.keys() <= self._layout.keys():
            named = f"nested differently: {[*answered]}; before they were {[*self._layout][1:]}"
            raise ValueError(f"{misfits}: {named}")
        leaves: Leaves = []
        for name, template in self._layout.items():
            for part in leaves_of(answered[name], template) if name in answered else ():
                leaf = as_array(part)
                if leaf.shape[:1] != (n_rows,):
                    raise ValueError(f"the policy answered an array of shape {leaf.shape} to {n_rows} observations")
                leaves.append(leaf)
        forms = [(leaf.shape[1:], leaf.dtype) for leaf in leaves]
        if forms != self._forms and not _hold(self._forms, forms):
            now, before = ([(shape, str(dtype)) for shape, dtype in each] for each in (forms, self._forms))
            raise ValueError(f"{misfits}: arrays of shapes and dtypes {now} per row; before they were {before}")
        self._forms = self._forms or forms
        in_order = [*answered] == [*self._layout][1:] and forms == self._forms
        if in_order and all(type(leaf) is np.ndarray for leaf in answered.values()):
            self._plain = plain  # such answers need no other look
        return leaves

    def _after(self, rows: Array, name: str, default: Any) -> Any:
        """A column of what was answered in rows; the default for no row."""
        missing = rows == NONE
        if missing.all():
            return map_nest(lambda leaf: np.repeat(leaf[None], len(rows), axis=0), default)
        column = self.answered(np.where(missing, 0, rows))[name]
        if missing.any():
            map_nest(lambda leaf, value: leaf.__setitem__(missing, value), column, default)
        return column

    def _optional(self, name: str, slots: Slots, ids: Array, info_of: InfoOf) -> Any:
        if name == ColumnNames.PREV_ACTIONS:
            return self.actions_at(slots.table["before"][ids])
        if name in _FIELDS:
            return slots.table[_FIELDS[name]][ids].copy()
        agents = slots.agents[ids].copy()
        if name == ColumnNames.AGENT_ID:
            return agents
        return [info_of(env, agent) for env, agent in zip(slots.table["env"][ids].tolist(), agents, strict=True)]


def _hold(first: Sequence[Form], now: Sequence[Form]) -> bool:
    """Whether arrays of the first forms take these; float32 may follow float64, a float never an integer."""
    fits = [a == b and np.can_cast(given, kept, "same_kind") for (a, kept), (b, given) in zip(first, now, strict=False)]
    return not first or (len(first) == len(now) and all(fits))


def _initial_states(policy: Any) -> list[Any]:
    """The states with which episodes begin.

    Raises:
        ValueError: one is an empty structure, or has one in it.
    """
    initial = policy.get_initial_state()
    for state in initial:
        if has_empty(state):
            raise ValueError(f"get_initial_state() gives {state!r}; begin with arrays of the shapes of later states")
    return [map_nest(as_array, state) for state in initial]
