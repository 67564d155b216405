"""One policy of a worker: its calls, and the rows of its slots.

    slot    an agent in an env, which has at most one open transition: acted on, but not ended
    rows    `[S, T]`, in the collectors' buffer: a transition is in the row of its slot at the step that ended it, and
            the other rows are void
    part    rows without the void ones, as columns `[n, …]`: observations, observations reached, what is kept of the
            policy's answers, labels, infos, rewards, terminated and truncated flags

A critic that is a separate network is not called in each step, but for many rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from operator import getitem
from typing import Any, TypeAlias

import numpy as np

from swath.rollout.buffer import Buffer, Rows
from swath.rollout.hosts.base import NO_ENDS, Ends, Infos
from swath.rollout.hosts.results import info_of
from swath.rollout.loop import Step
from swath.rollout.spaces import Array, Leaf, Leaves, build_value, first_unrepresentable, packer, splitter
from swath.rollout_workers.batches.names import STATE_IN, STATE_OUT, ColumnNames, WantedColumns
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.filters import NoFilter
from swath.rollout_workers.nests import as_array, leaves_of, map_nest, nest_of, template_of
from swath.rollout_workers.policy import OPTIONAL_ARGUMENTS, states_in
from swath.rollout_workers.processing import NoPreprocessor, action_processor, answer_leaves, mask_reader, reward_clip

# Labels of a slot and of its transitions, int64: the env; the trajectory id of the episode; the agent's place in the
# order of appearance; the steps that the env had made when the episode began, and before the transition, without
# discarded ones; the version of the weights that acted; the number of the row among those without a value, or `VALUED`.
ENV, EPISODE, AGENT, START, CLOCK, VERSION, UNVALUED = LABELS = range(7)
VALUED = -1

# A slot: its labels; sums of its episode, `clipped` being what clipping has taken away from the total; rewards since
# its last transition; the reward of that, after clipping; how many there were; whether one is open.
SLOT = np.dtype(
    [
        ("labels", np.int64, len(LABELS)),
        *((name, np.float64) for name in ("total", "clipped", "pending_reward", "reward")),
        ("n_made", np.int64),
        *((name, np.bool_) for name in ("terminated", "truncated", "is_open")),
    ],
    align=True,
)

# Positions in a sequence.
Which: TypeAlias = slice | Sequence[int]
ALL = slice(None)

# Methods by which a policy acts: with arguments, or with one dict of columns; its class overrides one of them.
_METHODS = "compute_actions", "compute_actions_from_input_dict"

_VALUES_AT_ONCE = 256


def resize(leaves: Leaves, size: int) -> Leaves:
    """Return leaves `[size, …]`: copies, in which rows that they do not have are 0."""
    return [np.concatenate([leaf, np.zeros((size - len(leaf), *leaf.shape[1:]), leaf.dtype)]) for leaf in leaves]


def with_rows(old: Leaves, size: int, ids: Any, rows: Leaves) -> Leaves:
    """Return new leaves `[size, …]` with some rows; others are as in the old leaves, or 0 where these have none."""
    leaves = resize(old or [leaf[:0] for leaf in rows], size)
    for leaf, new in zip(leaves, rows, strict=True):
        leaf[ids] = new
    return leaves


class PolicyRows:
    """One policy, with its slots and rows.

    Args:
        worker: has the policy.
        policy_id: of the policy.
        number: among all that the worker has had.

    Attributes:
        policy: the policy.
        wanted: optional columns that it reads, and that its batches have.
        process: turns action leaves into the envs' actions; None: they are the same.
        n_actions: number of action leaves.
        split: splits action leaves into one action per agent.
        passes_on: observations are as the policy sees them already.
        table: the slots, see `SLOT`.
        fields: of all slots, by name.
        size: number of slots, S.
        all_ids: the numbers of all slots.
        agents: ids of the agents, by slot.
        infos: that came with the latest observations, by slot; a tuple has the infos of all envs.
        has_infos: whether there were any.
        parts: the transitions that were not handed out.

    Raises:
        ValueError: it requires a view that is not served, or its initial states are empty.
    """

    def __init__(self, worker: Any, policy_id: str, number: int) -> None:
        setting, space = partial(worker.policy_setting, policy_id), worker.policy_dict[policy_id].action_space
        self.policy_id, self.policy, self.number = policy_id, worker.policy_map[policy_id], number
        self._preprocessor, self._filter = worker.preprocessors[policy_id], worker.filters[policy_id]
        self._setting, self._filters = setting, worker.filters
        self._clip = reward_clip(setting("clip_rewards"))
        self.process = action_processor(space, normalize=setting("normalize_actions"), clip=setting("clip_actions"))
        self.split, self._pack = splitter(space, writable=False), packer(self._preprocessor.leaves)
        self.wanted = WantedColumns.of(self.policy.view_requirements)
        method = next(name for base in type(self.policy).__mro__ for name in _METHODS if name in vars(base))
        self._by_dict = method == _METHODS[1]
        self._compute = getattr(self.policy, method)
        self._seen = template_of(self._preprocessor.observation_space)
        self._is_nested = isinstance(self._seen, dict | tuple)
        self._acted = answer_leaves(space, normalize=setting("normalize_actions"))
        self.n_actions = len(self._acted)
        self._mask = mask_reader(self._preprocessor.observation_space, space, None)
        self._initial = _initial_states(self.policy)
        zeros = (np.zeros(leaf.shape, leaf.dtype) for leaf in self._acted)
        self._action = build_value(space, zeros)
        self._action_form = np.asarray(None) if isinstance(self._action, dict | tuple) else self._action
        # Columns that agents take along from step to step, with what they begin with; and the leaves of that.
        self._states: dict[str, Any] = {f"{STATE_IN}{i}": state for i, state in enumerate(self._initial)}
        wanted = self.wanted.input | self.wanted.batch
        if ColumnNames.PREV_ACTIONS in wanted:
            self._states[ColumnNames.PREV_ACTIONS] = self._action
        self._takes_reward_along = ColumnNames.PREV_REWARDS in wanted
        self._first = leaves_of((*self._states.values(),))
        # What slots take along, `[S, …]`; and which leaves of what is kept of an answer it is in the next step.
        self._before: Leaves = [np.zeros((0, *leaf.shape), leaf.dtype) for leaf in self._first]
        self._sources: list[int] = []
        self._extras: dict[str, Any] = {}  # the extra columns of its first answer
        self._forms: dict[int, list[Any]] = {}  # shapes and dtypes of answers, by number of rows
        self._unvalued, self._n_unvalued = list[Leaves](), 0  # observations whose answers lack values
        self._free: list[int] = []
        self._use_table(np.zeros(0, SLOT))
        self.agents, self.infos, self.has_infos = np.empty(0, object), np.empty(0, object), False
        self.latest: Leaves = []  # observations of all slots
        self._open: Leaves = []  # observations and answers of open transitions, `[S, …]`
        self._buffer: Buffer | None = None
        self._form = 0, 0  # numbers of its slots and steps
        self._rows: Rows | None = None
        self._t = 0  # its next step
        self.parts: list[Leaves] = []

    def prepare(self, version: int, explore: bool | None) -> None:
        """Read settings that may have changed since the last call; `explore=None`: by the settings."""
        self._filter = self._filters.get(self.policy_id, self._filter)  # a removed policy keeps its last one
        self.passes_on = isinstance(self._preprocessor, NoPreprocessor) and isinstance(self._filter, NoFilter)
        self._version, self._explore = version, self._setting("explore") if explore is None else explore
        self._looks_at_episodes = getattr(self.policy, "looks_at_episodes", True)
        self._values_later = getattr(self.policy, "values_later", False)

    def policy_of(self, *_: Any, **__: Any) -> str:
        """Return the policy's id, as a mapping of all agents."""
        return self.policy_id

    def open_slot(self, labels: Sequence[int], agent: Any) -> int:
        """Return a slot for an agent that has just appeared, with its first labels: one that is free, or a new one."""
        if not self._free:
            self._free.append(self.size)
            self._use_table(np.append(self.table, np.zeros(1, SLOT)))
            self.agents, self.infos = (np.append(column, np.full(1, None)) for column in (self.agents, self.infos))
            self._before = resize(self._before, self.size)
        slot = self._free.pop()
        self.table[slot] = np.zeros((), SLOT)
        self.fields["labels"][slot, : len(labels)], self.agents[slot] = labels, agent
        for leaf, first in zip(self._before, self._first, strict=True):
            leaf[slot] = first
        return slot

    def free(self, slot: int) -> None:
        """Free a slot, whose open transition is dropped."""
        self._free.append(slot)
        self.fields["is_open"][slot] = False

    def preprocess(self, read: Callable[[Which], Leaves], n: int) -> tuple[Leaves, list[int], dict[int, Exception]]:
        """Return observations as the policy sees them, their positions, and errors by position.

        Args:
            read: returns the leaves of observations at some positions; raises if they do not fit.
            n: number of positions.
        """
        positions, errors = [*range(n)], dict[int, Exception]()
        try:
            observations = self._preprocess(read(ALL))
        except Exception:  # noqa: BLE001  it is found below
            for position in positions:
                try:
                    self._preprocess(read([position]))
                except Exception as error:  # noqa: BLE001  it is returned with the others
                    errors[position] = error
            positions = [position for position in positions if position not in errors]
            if not positions:
                return [], [], errors
            observations = self._preprocess(read(positions))
        if self.passes_on:
            return observations, positions, errors
        try:
            filtered = self._filter(observations)
            if self._mask is not None:  # zeros in it have a meaning
                self._mask(filtered)[...] = self._mask(observations)
            return leaves_of(filtered, self._seen), positions, errors
        except Exception as error:  # noqa: BLE001  it is returned
            error.add_note(f"raised by the observation filter of {self.policy_id!r}")
            return [], [], errors | dict.fromkeys(positions, error)

    def pack(self, values: Sequence[Any], indices: Which) -> Leaves:
        """Return the leaves of some observations of envs; raise `ValueError` if one is not of the policy's space."""
        return self._pack(values[indices] if isinstance(indices, slice) else [values[i] for i in indices])

    def observe(self, observations: Leaves, ids: Array) -> None:
        """Keep the latest observations of slots."""
        is_of_all = ids is self.all_ids
        self.latest = observations if is_of_all else with_rows(self.latest, self.size, ids, observations)

    def note_infos(self, infos: Infos, slots: Sequence[int]) -> None:
        """Keep the infos that came with the latest observations of slots: one per slot, or a vector env's batch."""
        if not any(infos):
            if self.has_infos:
                self.infos[slots] = None
            return
        self.has_infos = True
        by_slot = [(infos,)] * len(slots) if isinstance(infos, Mapping) else infos
        for slot, info in zip(slots, by_slot, strict=True):
            self.infos[slot] = info

    def info_of(self, slot: int) -> Mapping[str, Any]:
        """Return the info that came with the latest observation of a slot."""
        return _read_info(self.infos[slot], self.fields["labels"][slot, ENV])

    def act(self, inputs: Leaves, ids: Array, episodes: Sequence[Any]) -> Leaves:
        """Compute the policy's actions for slots; return the answers to keep, action leaves first.

        Args:
            inputs: their observations, as the policy sees them.
            ids: the slots.
            episodes: the running ones by env.

        Raises:
            ValueError: an answer that has not one row per slot, or does not fit earlier answers.
            Exception: what the policy raised.
        """
        fields, n_rows = self.fields, len(ids)
        before = [leaf.take(ids, axis=0) for leaf in self._before] if self._before else []
        answer, states, extras = self._ask(inputs, ids, before, episodes)
        if len(states) != len(self._initial):
            raise ValueError(f"{self.policy_id!r} answered {len(states)} states; its initial ones are {self._initial}")
        form, actions = self._action_form, [answer]
        if type(answer) is not np.ndarray or answer.dtype != form.dtype or answer.shape != (n_rows, *form.shape):
            actions = _check_actions(type(self.policy).__name__, self._acted, answer, n_rows)
        if states:
            extras = {**extras, **{f"{STATE_OUT}{i}": state for i, state in enumerate(states)}}
        if self._values_later:
            extras = {**extras, ColumnNames.VF_PREDS: np.zeros(n_rows, np.float32)}
        result = [*actions, *self._flat(extras)]
        if [(leaf.shape, leaf.dtype) for leaf in result] != self._forms.get(n_rows):
            self._note_forms(result, n_rows)
        if before:
            result += [leaf.astype(result[i].dtype, copy=False) for leaf, i in zip(before, self._sources, strict=True)]
        if self._takes_reward_along:
            result.append(fields["reward"][ids].astype(np.float32))
        fields["labels"][ids, VERSION] = self._version
        if self._values_later:
            fields["labels"][ids, UNVALUED] = range(self._n_unvalued, self._n_unvalued + n_rows)
            self._unvalued.append(inputs)
            self._n_unvalued += n_rows
        return result

    def open(self, observations: Leaves, kept: Leaves, ids: Array) -> None:
        """Open transitions of slots: keep observations and answers until the transitions end."""
        new = [*observations, *kept]
        if not self._open or len(self._open[0]) < self.size:
            self._open = with_rows(self._open, self.size, ids, new)
        else:
            for leaf, rows in zip(self._open, new, strict=True):
                leaf[ids] = rows
        self.fields["is_open"][ids] = True

    def end(self, ids: Any, reward: Array, clocks: Array) -> Array:
        """End transitions of slots at these clocks: add rewards, before clipping, to sums, and return them clipped."""
        fields, clipped = self.fields, reward if self._clip is None else self._clip(reward)
        if self._clip is not None:
            fields["clipped"][ids] += reward - clipped
        fields["total"][ids] += clipped
        fields["reward"][ids] = clipped
        fields["n_made"][ids] += 1
        fields["labels"][ids, CLOCK] = clocks
        return clipped

    def end_open(self, ids: Array, clocks: Array, n_steps: int) -> None:
        """End the open transitions of slots, with their rewards and flags, at the clocks of their envs; write them."""
        fields, reward = self.fields, np.zeros(self.size)
        reward[ids] = self.end(ids, fields["pending_reward"][ids], clocks[fields["labels"][ids, ENV]])
        fields["pending_reward"][ids], fields["is_open"][ids] = 0, False
        terminated, truncated = fields["terminated"][ids], fields["truncated"][ids]
        ended, void = terminated | truncated, np.delete(self.all_ids, ids).tolist() if len(ids) < self.size else ()
        ends = Ends(ids[ended], terminated[ended], truncated[ended]) if ended.any() else NO_ENDS
        if len(self.latest[0]) < self.size or len(self._open[0]) < self.size:
            self.latest, self._open = resize(self.latest, self.size), resize(self._open, self.size)
        n_observed = len(self.latest)
        step = Step(self._open[:n_observed], self._open[n_observed:], self.latest, reward, ends, void, ())
        self.write(step, n_steps)

    def write(self, step: Step, n_steps: int) -> None:
        """Write a step of all slots; where rows begin with it, there is room for this number of steps."""
        if self._before:
            ended = np.delete(self.all_ids, step.void) if step.void else ALL
            for leaf, i in zip(self._before, self._sources, strict=True):
                leaf[ended] = step.outputs[i][ended]
        step.outputs = [*step.outputs, self.fields["labels"], self.infos]
        if self._rows is not None and len(self._rows.reward) < self.size:
            self.seal()
        if self._rows is None:
            form = self.size, n_steps
            if self._buffer is None or self._form != form:
                self._buffer, self._form = Buffer(step.observation, step.outputs, n_steps), form
            self._rows, self._t = self._buffer.open(), 0
        assert self._buffer is not None
        self._buffer.write(self._rows, self._t, step)
        self._t += 1
        if self._t == self._buffer.n_steps:
            self.seal()

    def seal(self) -> None:
        """Make a part of the rows that were written."""
        rows, self._rows = self._rows, None
        if rows is None:
            return
        assert self._buffer is not None
        self._buffer.seal(rows)
        if self._t < self._buffer.n_steps:
            rows.blank_from(self._t)
        outcome = rows.reward, rows.terminated, rows.truncated
        columns = *rows.observation, *rows.next_observation, *rows.outputs, *outcome
        part = [column.reshape(-1, *column.shape[2:]) for column in columns]
        self.parts.append(part if rows.valid is None else select(part, rows.valid.reshape(-1)))

    def add_values(self) -> None:
        """Seal the rows, and compute the values of all observations that were acted on since the last call."""
        self.seal()
        if not self._unvalued:
            return
        acted, n = [*map(np.concatenate, zip(*self._unvalued, strict=True))], _VALUES_AT_ONCE
        inputs = ([leaf[first : first + n] for leaf in acted] for first in range(0, len(acted[0]), n))
        values = [self.policy.compute_values({ColumnNames.OBS: nest_of(self._seen, leaves)}) for leaves in inputs]
        place = len(acted) + self.n_actions + [*self._extras].index(ColumnNames.VF_PREDS)
        targets = [(labels_of(part), part[len(acted) + place]) for part in self.parts]
        targets += [(self.fields["labels"], self._open[place])] if self._open else []
        for labels, column in targets:
            rows = np.flatnonzero(labels[:, UNVALUED] != VALUED)
            column[rows] = np.concatenate(values)[labels[rows, UNVALUED]]
            labels[rows, UNVALUED] = VALUED
        self.fields["labels"][:, UNVALUED] = VALUED
        self._unvalued, self._n_unvalued = [], 0

    def joined(self) -> Leaves | None:
        """Return all transitions that were not handed out as one part; None if there is none."""
        self.seal()
        if len(self.parts) > 1:
            self.parts = [[*map(np.concatenate, zip(*self.parts, strict=True))]]
        return self.parts[0] if self.parts and len(self.parts[0][0]) else None

    def remove(self, choose: Callable[[Array], Array]) -> Leaves | None:
        """Remove and return the transitions for whose labels `[n, …]` a mask is set; None if there is none."""
        part = self.joined()
        if part is None:
            return None
        mask = choose(labels_of(part))
        self.parts = [] if mask.all() else [select(part, ~mask)]
        return (part if mask.all() else select(part, mask)) if mask.any() else None

    def truncate(self, episode_id: int) -> None:
        """Truncate an episode at the last transition of each agent, unless it was handed out."""
        part = self.joined()
        if part is not None:
            labels, (*_, terminated, truncated) = labels_of(part), part
            rows = np.flatnonzero(labels[:, EPISODE] == episode_id)
            last = [*dict(zip(labels[rows, AGENT].tolist(), rows.tolist(), strict=True)).values()]
            truncated[last] |= ~terminated[last]

    def columns(self, part: Leaves) -> dict[str, Any]:
        """Return the columns of a batch that are kept, or can be computed from labels."""
        leaves, optional = iter(part), dict[str, Any]()
        layout = {ColumnNames.OBS: self._seen, ColumnNames.NEXT_OBS: self._seen, ColumnNames.ACTIONS: self._action}
        columns = {name: nest_of(first, leaves) for name, first in {**layout, **self._extras, **self._states}.items()}
        if self._takes_reward_along:
            optional[ColumnNames.PREV_REWARDS] = next(leaves)
        labels, _, *outcome = leaves
        columns[ColumnNames.T] = labels[:, CLOCK] - labels[:, START]
        columns |= zip((ColumnNames.REWARDS, ColumnNames.TERMINATEDS, ColumnNames.TRUNCATEDS), outcome, strict=True)
        kept = {ColumnNames.EPS_ID: EPISODE, ColumnNames.AGENT_INDEX: AGENT, ColumnNames.POLICY_VERSION: VERSION}
        columns |= {name: np.ascontiguousarray(labels[:, label]) for name, label in kept.items()}
        optional[ColumnNames.ENV_ID] = np.ascontiguousarray(labels[:, ENV])
        optional |= {name: columns.pop(name) for name in (ColumnNames.PREV_ACTIONS,) if name in columns}
        return columns | {name: column for name, column in optional.items() if name in self.wanted.batch}

    def _preprocess(self, leaves: Leaves) -> Any:
        return leaves if self.passes_on else self._preprocessor.transform_batch(leaves)

    def _use_table(self, table: Array) -> None:
        self.table, self.fields = table, {name: table[name] for name in SLOT.names or ()}
        self.size, self.all_ids = len(table), np.arange(len(table))

    def _ask(self, inputs: Leaves, ids: Array, before: Leaves, episodes: Sequence[Any]) -> Any:
        """Return the policy's actions, states and extra columns for slots."""
        fields, policy, columns = self.fields, self.policy, dict[str, Any]()
        # Copies, since the policy may write into them.
        observations = nest_of(self._seen, map(np.copy, inputs)) if self._is_nested else inputs[0].copy()
        if before or self.wanted.input:
            columns = self._columns_before(ids, before)
        keywords = {"explore": self._explore, "timestep": policy.global_timestep, "episodes": None}
        if self._looks_at_episodes:
            keywords["episodes"] = [episodes[env] for env in fields["labels"][ids, ENV].tolist()]
        if self._values_later:
            keywords["with_values"] = False
        if self._by_dict:
            return self._compute(SampleBatch({ColumnNames.OBS: observations, **columns}), **keywords)
        for argument, name in OPTIONAL_ARGUMENTS.items():
            keywords[argument] = columns.get(name)
        return self._compute(observations, states_in(columns) if columns else [], **keywords)

    def _columns_before(self, ids: Array, before: Leaves) -> dict[str, Any]:
        """Return states and optional columns of the input for slots."""
        leaves, fields, wanted = iter(before), self.fields, self.wanted.input
        columns = {name: nest_of(first, leaves) for name, first in self._states.items()}
        if ColumnNames.PREV_ACTIONS not in wanted:
            columns.pop(ColumnNames.PREV_ACTIONS, None)
        optional: dict[str, Callable[[], Any]] = {
            ColumnNames.PREV_REWARDS: lambda: fields["reward"][ids].astype(np.float32),
            ColumnNames.ENV_ID: lambda: fields["labels"][ids, ENV],
            ColumnNames.INFOS: lambda: [*map(self.info_of, ids.tolist())],
            ColumnNames.AGENT_ID: lambda: self.agents[ids],
        }
        return columns | {name: column() for name, column in optional.items() if name in wanted}

    def _flat(self, answer: dict[str, Any]) -> Leaves:
        """Return the leaves of an answer besides actions, in the order of the first answer.

        Raises:
            ValueError: the first answer had other columns.
        """
        extras = self._extras = self._extras or {
            name: self._states.get(STATE_IN + name.removeprefix(STATE_OUT), leaf) for name, leaf in answer.items()
        }
        if answer.keys() != extras.keys():
            raise ValueError(f"{self.policy_id!r} answered the extra columns {[*answer]}; before they were {[*extras]}")
        leaves: Leaves = []
        for name, first in extras.items():
            leaf = answer[name]
            leaves += [leaf] if type(leaf) is np.ndarray else map(as_array, leaves_of(leaf, first))
        return leaves

    def _note_forms(self, leaves: Leaves, n_rows: int) -> None:
        """Keep shapes and dtypes of an answer of this number of rows.

        Raises:
            ValueError: there is not one row per slot, or rows differ from rows before.
        """
        forms = [(leaf.shape, leaf.dtype) for leaf in leaves]
        first = next(iter(self._forms.values()), forms)
        needed = [((n_rows, *shape[1:]), dtype) for shape, dtype in first]
        if forms != needed:
            new, old = (", ".join(f"{dtype} of shape {shape}" for shape, dtype in rows) for rows in (forms, needed))
            raise ValueError(f"{self.policy_id!r} answered {new}; before they were {old} for as many rows")
        self._forms[n_rows] = forms
        layout = {ColumnNames.PREV_ACTIONS: self._action, **self._extras}
        places = iter(range(len(forms)))
        inputs = {name.replace(STATE_OUT, STATE_IN): [next(places) for _ in leaves_of(layout[name])] for name in layout}
        self._sources = [place for name in self._states for place in inputs[name]]
        self._before = [leaf.astype(leaves[i].dtype) for leaf, i in zip(self._before, self._sources, strict=True)]


def labels_of(part: Leaves) -> Array:
    """Return the labels `[n, …]` of a part."""
    labels: Array = part[-5]
    return labels


def infos_at(part: Leaves, rows: Any = ALL) -> list[Mapping[str, Any]]:
    """Return the infos that came with the observations reached in rows of a part."""
    infos, envs = part[-4][rows].tolist(), labels_of(part)[rows, ENV].tolist()
    return [_read_info(info, env) if info else {} for info, env in zip(infos, envs, strict=True)]


def select(part: Leaves, indices: Array) -> Leaves:
    """Return copies of rows of a part, by number or by a mask."""
    rows = indices.nonzero()[0] if indices.dtype == np.bool_ else indices
    return [column.take(rows, axis=0) for column in part]


def _check_actions(name: str, leaves: Sequence[Leaf], answer: Any, n_rows: int) -> Leaves:
    """Return the action leaves `[n, …]` of a policy's answer, in their dtypes.

    Args:
        name: of the policy, for messages.
        leaves: of the action space, by `answer_leaves`.
        answer: a nest of batches, or a list of one action per row.
        n_rows: how many observations the policy has got.

    Raises:
        ValueError: not one row per observation, or actions of another shape.
        TypeError: no numbers, or numbers that the space's dtype would change.
    """
    one_by_one = isinstance(answer, list)
    actions: Leaves = []
    for leaf in leaves:
        if one_by_one:
            action = as_array([reduce(getitem, leaf.path, row) for row in answer])
        else:
            action = as_array(reduce(getitem, leaf.path, answer))
        expected = (n_rows, *leaf.shape)
        if action.shape != expected:
            raise ValueError(f"{name} answered actions of shape {action.shape}; wanted {expected}, for {leaf.space}")
        if action.dtype != leaf.dtype:
            lost = first_unrepresentable(action, leaf.dtype) if action.dtype.kind in "biuf" else action.dtype
            if lost is not None:
                dtypes = f"actions of dtype {action.dtype}; {leaf.space} wants {leaf.dtype}"
                raise TypeError(f"{name} answered {dtypes}, which cannot hold {lost}")
            action = action.astype(leaf.dtype)
        actions.append(action)
    return actions


def _read_info(info: Any, env: int) -> Mapping[str, Any]:
    """Return the info of an env, which may be an entry of the infos of all envs."""
    return info_of(info[0], env) if isinstance(info, tuple) else info or {}


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
