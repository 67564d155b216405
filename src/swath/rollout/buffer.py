"""The buffer of a fragment's steps, the arrays `[B, T, …]` that are handed out, and the batch built from them.

    Step t ──▶ room[t]        observations, policy outputs, rewards: memory `[T, B, …]`, used again
           ──▶ flags          ends, rows that are no transition
           ──▶ final          what a step led to, where the next row is the first of another episode
    seal   ──▶ fresh arrays   `[B, T, …]`, copied in one go; large rows are written there at once
    batch  ──▶ `next`         made of the next rows and of the final observations

Writing the rows of all envs side by side touches a tenth of the memory lines of rows `[:, t]`, and leaves the caches to
the policy and the envs. The receiver owns the arrays; the next fragment gets new ones. Steps of TensorDict envs are
copied and stacked entry by entry, in half the time; lazily where their shapes change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase

from swath import keys
from swath.keys import Key, as_tuple, order_entries, under_next
from swath.options import FinalObservation
from swath.rollout.hosts.base import DeviceEnds, TensorDictSpec
from swath.rollout.hosts.results import mark_missing, no_final_observation
from swath.rollout.infos import InfoReader
from swath.rollout.loop import Step
from swath.rollout.memory import (
    as_array,
    as_tensor,
    concatenate,
    contiguous,
    convert,
    empty,
    to_cpu,
    unset_flags,
    zeros_like,
)
from swath.rollout.spaces import Array, Leaves

# From this many bytes on, the row of an env fills whole memory lines: it is written to its final place.
LARGE_ROW = 256


@dataclass(kw_only=True)
class Flags:
    """Rewards and ends of T steps of B envs, arrays `[B, T]`.

    Attributes:
        reward: float32.
        terminated: bool.
        truncated: bool.
        valid: bool: the row is a transition; `None` if all are.
        restarted: envs that failed before the first row, whose episode in the fragment before was given up.
    """

    reward: Any
    terminated: Any
    truncated: Any
    valid: Any = None
    restarted: Sequence[int] = ()

    @property
    def last(self) -> Any:
        """Return whether each row ends its episode."""
        return self.terminated | self.truncated

    def void(self, envs: Sequence[int] | slice, steps: int | slice) -> None:
        """Mark rows as no transitions."""
        if self.valid is None:
            self.valid = ~zeros_like(self.truncated)
        self.valid[:, steps][envs] = False

    def mark(self, t: int, step: Step) -> None:
        """Write the ends, void rows and truncations before step `t`.

        The row before is the last good row of an env that failed, unless its episode had ended there.
        """
        ends, unread = step.ends, step.device_ends
        if unread is not None:
            self.terminated[:, t], self.truncated[:, t] = unread.terminated, unread.truncated
            if unread.void is not None:
                self.void((), t)
                self.valid[:, t] = ~unread.void
        elif ends.envs.size:  # a view of the column takes a third of the time
            self.terminated[:, t][ends.envs] = convert(ends.terminated, self.terminated)
            self.truncated[:, t][ends.envs] = convert(ends.truncated, self.truncated)
        if step.void:
            self.void(step.void, t)
        if step.truncated_before and t == 0:
            self.restarted = step.truncated_before
        elif step.truncated_before:
            ended = self.last[:, t - 1] if self.valid is None else self.last[:, t - 1] | ~self.valid[:, t - 1]
            self.truncate([env for env in step.truncated_before if not ended[env]], t - 1)

    def truncate(self, envs: Sequence[int] | Array, t: int) -> None:
        """Mark the episodes of the envs as truncated with step `t`, unless they terminated."""
        self.truncated[envs, t] |= ~self.terminated[envs, t]

    def blank_from(self, n_steps: int) -> None:
        """Fill rows from step `n_steps` on, which were never written, with zeros, and mark them as no transitions."""
        self.reward[:, n_steps:] = 0
        self.void(slice(None), slice(n_steps, None))

    def truncate_last(self) -> None:
        """Mark the last transition of each env as truncated, although its episode continues."""
        valid = as_tensor(~zeros_like(self.truncated) if self.valid is None else self.valid)
        last = torch.where(valid, torch.arange(valid.shape[1], device=valid.device), -1).amax(1)
        for t in {*last.tolist()} - {-1}:
            self.truncate(np.flatnonzero(as_array(last) == t), t)


@dataclass(kw_only=True)
class Rows(Flags):
    """T steps of B envs, all arrays `[B, T, …]`.

    An observation is stored once: what a step led to is the next row, except where an episode ended.

    Attributes:
        observation: one array per observation leaf.
        outputs: one array per policy output, action leaves first.
        infos: float32 `[B, T]`, one array per entry of infos.
        last_observation: what the last step led to, one array `[B, …]` per observation leaf.
        ends_at: envs and steps, two int64 arrays `[n]`, that led to an observation which is not in the next row.
        final: these observations, one array `[n, …]` per leaf.
        missing: bool `[B, T]`: rows that ended an episode whose last observation the env did not send, so that the next
            row is the first of another episode; `None` unless that is allowed.
    """

    observation: Leaves = field(default_factory=list)
    outputs: Leaves = field(default_factory=list)
    infos: Leaves = field(default_factory=list)
    last_observation: Leaves = field(default_factory=list)
    ends_at: tuple[Any, Any] | None = None
    final: Leaves = field(default_factory=list)
    missing: Any = None

    @property
    def next_observation(self) -> Leaves:
        """Return the observations after the steps, one new array per leaf."""
        finals = self.final or [None] * len(self.observation)
        return [*map(self._next_leaf, self.observation, self.last_observation, finals)]

    def blank_from(self, n_steps: int) -> None:
        """Fill rows from step `n_steps` on with zeros, and mark them as no transitions."""
        super().blank_from(n_steps)
        if n_steps > 0:
            envs = np.arange(len(self.reward))
            if self.ends_at is not None:
                ended, steps = map(as_array, self.ends_at)
                envs = np.setdiff1d(envs, ended[steps == n_steps - 1])
            self.add_finals(envs, np.full_like(envs, n_steps - 1), [leaf[envs] for leaf in self.last_observation])
        for array in (*self.observation, *self.outputs, *self.infos):
            array[:, n_steps:] = 0
        self.last_observation = [zeros_like(array[:, 0]) for array in self.observation]

    def add_finals(self, envs: Any, steps: Any, final: Leaves) -> None:
        """Add observations `[n, …]` to which steps of envs have led, and which are not in their next rows."""
        envs, steps = (convert(part, self.reward) if isinstance(part, np.ndarray) else part for part in (envs, steps))
        if self.ends_at is not None:
            envs, steps = concatenate([self.ends_at[0], envs]), concatenate([self.ends_at[1], steps])
            final = [*map(concatenate, zip(self.final, final, strict=True))]
        self.ends_at, self.final = (envs, steps), final

    def _next_leaf(self, observation: Any, last: Any, final: Any) -> Any:
        next_leaf = empty(observation, observation.shape)
        as_tensor(next_leaf)[:, :-1] = as_tensor(observation)[:, 1:]  # twice as quick as numpy
        next_leaf[:, -1] = last
        if self.ends_at is not None:
            next_leaf[self.ends_at] = final
        return next_leaf


@dataclass(kw_only=True)
class PlannedRows(Rows):
    """T steps of B TorchRL envs, as arrays that become a batch in TorchRL's form.

    Attributes:
        entries: keys of the observation and of the outputs, in the order of the arrays.
        order: keys of the batch in order; others come last.
        batch_shape: `*B`.
    """

    entries: tuple[tuple[Key, ...], tuple[Key, ...]]
    order: Sequence[Key]
    batch_shape: tuple[int, ...]

    def truncate(self, envs: Sequence[int] | Array, t: int) -> None:
        """Mark the episodes of the envs as truncated with step `t`, also if they terminated, as TorchRL does."""
        self.truncated[envs, t] = True

    def batch(self, extras: Mapping[Key, torch.Tensor], *, compact: bool) -> Any:
        """Return the batch `[*B, T]` with further entries."""
        shape, (observed, outputs) = (*self.batch_shape, self.reward.shape[1]), self.entries
        following = () if compact else zip(map(under_next, observed), self.next_observation, strict=True)
        leaves = [*zip((*observed, *outputs), (*self.observation, *self.outputs), strict=True), *following]
        tensors = {key: _tensor(leaf, *shape, *leaf.shape[2:]) for key, leaf in leaves}
        ends = zip(keys.FLAGS, (self.last, self.terminated, self.truncated), strict=True)
        for name, array in ((keys.REWARD, self.reward), *ends):
            tensors[keys.NEXT, name] = _tensor(array, *shape, 1)
        flags = (*keys.FLAGS, under_next(keys.IS_INIT)) if keys.IS_INIT in outputs else keys.FLAGS
        tensors |= {key: torch.zeros((*shape, 1), dtype=torch.bool) for key in flags}
        batch = TensorDict({**tensors, **extras}, batch_size=shape, names=[*[None] * (len(shape) - 1), keys.TIME])
        return order_entries(batch.exclude(*map(under_next, observed)) if compact else batch, self.order)


class Buffer:
    """Room for fragments of T steps, one after another.

    Args:
        observation: example of the observation leaves `[B, …]`.
        outputs: example of the policy's outputs `[B, …]`.
        n_steps: T.
        final_observation: `"missing"` allows envs that end without a true last observation; then rows say so.
        infos: reads entries of infos; `None` for no entries.
        make_rows: returns rows for their flags; `Rows`, or a function of the same keywords.
    """

    def __init__(
        self,
        observation: Leaves,
        outputs: Leaves,
        n_steps: int,
        final_observation: FinalObservation = "required",
        infos: InfoReader | None = None,
        make_rows: Callable[..., Rows] = Rows,
    ) -> None:
        self._make_rows, self.n_steps = make_rows, n_steps
        self._n_envs, self._n_observed, self._n_outputs = len(observation[0]), len(observation), len(outputs)
        self._allows_missing = final_observation == "missing"
        self._example, self._on_device = observation, isinstance(observation[0], torch.Tensor)
        reward = convert(np.empty(self._n_envs, np.float32), observation[0])
        # Observations of tensors are new in each step, and stacked at the end.
        self._info_reader, info_keys = infos, () if infos is None else infos.keys
        self._like = [*(() if self._on_device else observation), *outputs, *[reward] * len(info_keys), reward]
        self._in_place = [self._n_envs == 1 or leaf.nbytes >= LARGE_ROW * self._n_envs for leaf in self._like]
        self._rooms = [self._room(place) for place in range(len(self._like))]
        self._step: Step | None = None
        self._observations, self._ends = list[Leaves](), list[tuple[int, Array, Leaves]]()
        self._finals = list[tuple[int, DeviceEnds]]()

    def open(self) -> Rows:
        """Return rows for one fragment, which get their arrays from `seal`; then the next one may be opened."""
        self._rooms = [self._room(place) if new else self._rooms[place] for place, new in enumerate(self._in_place)]
        self._step, self._observations, self._ends, self._finals = None, [], [], []
        shape, reward = (2, self._n_envs, self.n_steps), self._like[-1]
        terminated, truncated = unset_flags(reward, shape)
        missing = unset_flags(reward, shape[1:]) if self._allows_missing else None
        flags = {"terminated": terminated, "truncated": truncated, "missing": missing}
        return self._make_rows(reward=empty(reward, shape[1:]), **flags)

    def write(self, rows: Rows, t: int, step: Step) -> None:
        """Write step `t`."""
        leaves: tuple[Any, ...] = (*step.outputs, step.reward)
        if self._info_reader is not None:
            infos = self._info_reader.read(step.info, step.ends if step.device_ends is None else step.device_ends)
            leaves = (*step.outputs, *infos, step.reward)
        if self._on_device:
            self._observations.append(step.observation)
        else:
            leaves = (*step.observation, *leaves)
        for room, leaf in zip(self._rooms, leaves, strict=True):
            room[t] = leaf
        if (before := self._step) is not None and step.observation is not before.next_observation:
            envs = before.ends.envs
            if step.truncated_before:
                envs = np.union1d(envs, step.truncated_before)
            if before.device_ends is not None and before.device_ends.hides_final:
                envs = envs[~as_array(rows.last[:, t - 1])[envs]]
            self._ends.append((t - 1, envs, [leaf[envs] for leaf in before.next_observation]))
        if (ends := step.device_ends) is not None and ends.hides_final:
            self._finals.append((t, ends))
        elif step.ends.lacks_final is not None:
            mark_missing(rows.missing, step.ends, t)
        self._step = step
        rows.mark(t, step)

    def seal(self, rows: Rows) -> None:
        """Set the arrays of rows whose steps are all written, copied into the order of the batch if in another.

        Raises:
            BadAnswer: an episode ended without a true last observation, and this is not allowed.
        """
        time_major = [room.swapaxes(0, 1) for room in self._rooms]
        arrays = [room if stays else contiguous(room) for room, stays in zip(time_major, self._in_place, strict=True)]
        n = self._n_observed
        rows.observation, arrays = (self._stack(), arrays) if self._on_device else (arrays[:n], arrays[n:])
        *arrays, rows.reward = arrays
        rows.outputs, rows.infos = arrays[: self._n_outputs], arrays[self._n_outputs :]
        if self._step is not None:
            rows.last_observation, self._step = self._step.next_observation, None
        if self._ends:
            steps, envs, finals = zip(*self._ends, strict=True)
            final = [*map(concatenate, zip(*finals, strict=True))]
            rows.add_finals(np.concatenate(envs), np.repeat(steps, [*map(len, envs)]), final)
        if self._finals:
            self._set_finals(rows)
        self._observations, self._ends, self._finals = [], [], []  # the rows have copies

    def _stack(self) -> Leaves:
        """Return the observations `[B, T, …]`; rows of steps that were not written are undefined."""
        unwritten = [self._example] * (self.n_steps - len(self._observations))
        return [torch.stack(column, 1) for column in zip(*self._observations, *unwritten, strict=True)]

    def _set_finals(self, rows: Rows) -> None:
        """Set the true last observations of episodes that ended; waits for the device."""
        ended = rows.last
        if rows.ends_at is not None:  # episodes were given up when the simulator failed
            ended[rows.ends_at] = False
        finals = [(t, ends.final) for t, ends in self._finals if ends.final is not None]
        if any(ends.final is None or ends.sent is not None for _, ends in self._finals):
            hidden, missing = [t for t, _ in self._finals], zeros_like(ended)
            missing[:, hidden] = ended[:, hidden] & ~torch.stack([ends.has_final for _, ends in self._finals], 1)
            if self._allows_missing:
                rows.missing = missing
            elif bool(missing.any()):
                raise no_final_observation()
            ended = ended & ~missing
        if finals:
            steps = torch.tensor([t for t, _ in finals], device=ended.device)
            positions, envs = ended[:, steps].T.nonzero(as_tuple=True)
            columns = zip(*[final for _, final in finals], strict=True)
            rows.add_finals(envs, steps[positions], [torch.stack(column)[positions, envs] for column in columns])

    def _room(self, place: int) -> Any:
        """Return uninitialised room `[T, B, …]` for an entry; in memory `[B, T, …]` if rows are written in place."""
        example, in_place = self._like[place], self._in_place[place]
        shape = (len(example), self.n_steps) if in_place else (self.n_steps, len(example))
        room = empty(example, (*shape, *example.shape[1:]))
        return room.swapaxes(0, 1) if in_place else room


class TensorDictRows(Flags):
    """T steps of B envs as one TensorDict `[*B, T]`.

    Args:
        spec: properties of the envs.
        example: a first observation with the policy's outputs, `[*B]`.
        n_steps: T.
        order: keys of the batch in order; others come last.

    Attributes:
        spec: properties of the envs.
        steps: copies of the steps, since some envs and policies write every step into the same memory: entries by key,
            or a TensorDict of another kind `[*B]`.
    """

    def __init__(self, spec: TensorDictSpec, example: TensorDictBase, n_steps: int, order: Sequence[Key]) -> None:
        terminated, truncated = np.zeros((2, spec.num_envs, n_steps), np.bool_)
        super().__init__(reward=np.zeros_like(truncated, np.float32), terminated=terminated, truncated=truncated)
        self.spec, self.steps, self._example, self._order = spec, list[Any](), example, order
        self._stacked: Any = None  # the steps, stacked to be read
        self._structure: TensorDictBase | None = None  # the nested TensorDicts of a step, without entries

    def append(self, step: TensorDictBase) -> None:
        """Append a copy of a step."""
        if type(step) is not TensorDict:
            self.steps.append(step.clone())
            return
        if self._structure is None:
            self._structure = step.empty(recurse=True)
        self.steps.append({key: value.clone() for key, value in _entries(step)})

    def read_flags(self, t: int) -> None:
        """Set the ends of step `t`, if there is one, to those in the step."""
        if t >= 0:
            next_td = self._tensordict(self.steps[t]).get(keys.NEXT)
            self.terminated[:, t], self.truncated[:, t] = self.spec.host.reader.flags(next_td)

    def read_steps(self) -> None:
        """Set rewards and ends to those in the steps; waits for the device of the envs once per entry."""
        reader, self._stacked = self.spec.host.reader, self._stack()
        if type(self._stacked) is TensorDict:
            next_td = self._stacked.get(keys.NEXT)
            rewards, flags = reader.reward(next_td), reader.flags(next_td)
        else:  # shapes change
            next_tds = [self._tensordict(step).get(keys.NEXT) for step in self.steps]
            rewards = np.stack([reader.reward(next_td) for next_td in next_tds], 1)
            flags = np.stack([reader.flags(next_td) for next_td in next_tds], -1)
        n_steps = len(self.steps)
        self.reward[:, :n_steps] = rewards
        self.terminated[:, :n_steps] |= flags[0]
        self.truncated[:, :n_steps] |= flags[1]

    def truncate(self, envs: Sequence[int] | Array, t: int) -> None:
        """Set the truncated and done flags of the envs in step `t`, in every group."""
        if not len(envs):
            return
        self._stacked = None
        shape, step = self.spec.batch_shape, self.steps[t]
        for key in self.spec.all_done_keys:
            if as_tuple(key)[-1] in (keys.TRUNCATED, keys.DONE):
                flag = step.get(under_next(key)).clone()
                flag[np.unravel_index(envs, shape) if shape else ...] = True
                step[under_next(key)] = flag
        self.truncated[envs, t] = True

    def blank_from(self, n_steps: int) -> None:
        """Fill rows from step `n_steps` on with zeros, and mark them as no transitions."""
        if self.steps:
            template = self._tensordict(self.steps[-1])
        else:
            template, device = self.spec.host.zero_step(), self._example.device
            template = (template.clear_device_() if device is None else template.to(device)).update(self._example)
        blank = template.apply(torch.zeros_like, filter_empty=False)
        self._stacked = None
        del self.steps[n_steps:]
        for _ in range(n_steps, self.reward.shape[1]):
            self.append(blank)
        super().blank_from(n_steps)

    def batch(self, extras: Mapping[Key, torch.Tensor], *, compact: bool) -> Any:
        """Return the batch `[*B, T]` with further entries."""
        batch = self._stack() if self._stacked is None else self._stacked
        batch.refine_names(..., keys.TIME)
        batch.clear_device_()
        if compact:
            batch = batch.exclude(*(under_next(key) for key in self.spec.observation_keys))
        batch = set_all(batch, extras)
        return order_entries(batch, self._order) if type(batch) is TensorDict else batch

    def _stack(self) -> Any:
        shape, first, structure = self.spec.batch_shape, self.steps[0], self._structure
        if structure is not None and all(type(step) is dict and step.keys() == first.keys() for step in self.steps):
            with suppress(RuntimeError):  # shapes change
                entries = {key: torch.stack([step[key] for step in self.steps], len(shape)) for key in first}
                return set_all(structure.unsqueeze(len(shape)).expand(*shape, len(self.steps)), entries)
        return LazyStackedTensorDict.maybe_dense_stack([*map(self._tensordict, self.steps)], dim=len(shape))

    def _tensordict(self, step: Any) -> TensorDictBase:
        structure = self._structure
        return step if structure is None or type(step) is not dict else set_all(structure.empty(recurse=True), step)


class TensorDictBuffer:
    """Room for fragments of T steps of TensorDict envs.

    Args:
        spec: properties of the envs.
        example: a first observation with the policy's outputs, `[*B]`.
        n_steps: T.
        order: keys of the batch in order; others come last.
    """

    def __init__(self, spec: TensorDictSpec, example: TensorDictBase, n_steps: int, order: Sequence[Key]) -> None:
        # Returns rows for one fragment.
        self.open = partial(TensorDictRows, spec, example, n_steps, order)

    def write(self, rows: TensorDictRows, t: int, step: Step) -> None:
        """Write step `t`."""
        root, ends = step.outputs[0], step.ends
        rows.append(root)
        if step.device_ends is not None:
            if step.truncated_before:
                rows.read_flags(t - 1)
                rows.mark(t, replace(step, device_ends=None))
            return
        rows.reward[:, t] = step.reward
        rows.mark(t, step)
        if ends.truncated.any():  # the loop may have counted a limit
            n, flags = len(rows.reward), [root.get(under_next(key)) for key in rows.spec.done_keys]
            done = torch.stack([flag.reshape(n, -1).any(1) for flag in flags]).any(0).cpu().numpy()
            rows.truncate(ends.envs[ends.truncated & ~done[ends.envs]], t)

    def seal(self, rows: TensorDictRows) -> None:
        """Read rewards and ends of envs that reset themselves; `TensorDictRows.batch` stacks the steps."""
        if rows.spec.autoresets and rows.steps:
            rows.read_steps()


def _entries(td: TensorDict, path: tuple[str, ...] = ()) -> Iterator[tuple[Key, Any]]:
    """Yield the entries of nested plain TensorDicts; a TensorDict of another kind, as a lazy stack, is an entry."""
    for key, value in td.items():
        if type(value) is TensorDict:
            yield from _entries(value, (*path, key))
        else:
            yield (*path, key) if path else key, value


def set_all(td: TensorDictBase, entries: Mapping[Key, Any]) -> TensorDictBase:
    """Set entries of a TensorDict, and return it."""
    for key, value in entries.items():
        td.set(key, value)
    return td


@dataclass(frozen=True)
class Layout:
    """Names and extras of a batch.

    Attributes:
        batch_shape: `*B`.
        observation: keys of the observation leaves.
        outputs: keys of the policy's outputs, action leaves first.
        infos: keys of entries of infos, which are under `"next"` in the batch.
        track_ids: whether to add trajectory ids.
        track_version: whether to add the second pair of version entries.
        compact_obs: whether to leave out the observations under `"next"`.
        masked: whether to add the mask also where all rows are transitions.
        open: whether env and policy may write any entry, also entries that are not delivered.
    """

    batch_shape: tuple[int, ...]
    observation: tuple[Key, ...]
    outputs: tuple[Key, ...]
    infos: tuple[Key, ...] = ()
    track_ids: bool = True
    track_version: bool = False
    compact_obs: bool = False
    masked: bool = False
    open: bool = False


@dataclass(slots=True)
class Fragment:
    """T steps of B envs under one policy version.

    Attributes:
        rows: the arrays `[B, T, …]`, or a TensorDict of them.
        ids: int64 `[B, T]` trajectory ids, -1 where a row is no transition.
        counts: int64 `[B, T]`: number of earlier steps of the episode; `None` if batches do not have it.
        version: the policy version that acted; int64 `[B]` if envs of several workers are joined.
        steps: number of steps that were written, if not all T; else `None`.
    """

    rows: Rows | TensorDictRows
    ids: Any
    counts: Any
    version: int | Array
    steps: int | None = None

    @property
    def frames(self) -> int:
        """Return the number of rows that are transitions."""
        return prod(self.ids.shape) if self.rows.valid is None else int(self.rows.valid.sum())

    def move_to_cpu(self) -> None:
        """Turn tensors, which may be on a device, into arrays, before they cross the border of a process."""
        rows = self.rows
        if not isinstance(rows, Rows) or not isinstance(rows.reward, torch.Tensor):
            return
        for name in ("observation", "outputs", "infos", "last_observation", "final"):
            setattr(rows, name, [*map(to_cpu, getattr(rows, name))])
        for name in ("reward", "terminated", "truncated", "valid", "missing"):
            value = getattr(rows, name)
            setattr(rows, name, None if value is None else as_array(value))
        if rows.ends_at is not None:
            rows.ends_at = as_array(rows.ends_at[0]), as_array(rows.ends_at[1])
        self.ids, self.counts = as_array(self.ids), None if self.counts is None else as_array(self.counts)

    def to_tensordict(self, layout: Layout) -> Any:
        """Return the batch `[*B, T]`, which takes over the memory of the fragment."""
        rows, shape = self.rows, (*layout.batch_shape, self.ids.shape[1])
        labels = dict(self._labels(layout, shape))
        if isinstance(rows, TensorDictRows | PlannedRows):
            return rows.batch(labels, compact=layout.compact_obs)
        leaves = [*zip((*layout.observation, *layout.outputs), (*rows.observation, *rows.outputs), strict=True)]
        if not layout.compact_obs:
            leaves += zip(map(under_next, layout.observation), rows.next_observation, strict=True)
        entries = {key: _tensor(leaf, *shape, *leaf.shape[2:]) for key, leaf in leaves}
        infos = zip(map(under_next, layout.infos), rows.infos, strict=True)
        entries |= {key: _tensor(leaf, *shape, 1) for key, leaf in (*self._flags(rows), *infos)}
        return TensorDict(entries | labels, batch_size=shape, names=[*[None] * len(layout.batch_shape), keys.TIME])

    def _labels(self, layout: Layout, shape: tuple[int, ...]) -> Iterator[tuple[Key, torch.Tensor]]:
        """Yield ids, mask and versions, `[*B, T]`."""
        if layout.track_ids:
            yield keys.TRAJ_IDS, _tensor(self.ids, *shape)
        if self.rows.valid is not None:
            yield keys.MASK, _tensor(self.rows.valid, *shape)
        elif layout.masked:
            yield keys.MASK, torch.ones(shape, dtype=torch.bool, device=as_tensor(self.rows.reward).device)
        version = torch.as_tensor(self.version, device=as_tensor(self.rows.reward).device)
        version = version.unsqueeze(-1).expand(self.ids.shape).reshape(shape)
        yield keys.VERSION, version
        if layout.track_version:
            for key in (keys.TRACKED_VERSION, (keys.NEXT, keys.TRACKED_VERSION)):
                yield key, version.clone(memory_format=torch.contiguous_format)

    def _flags(self, rows: Rows) -> Iterator[tuple[Key, Array]]:
        """Yield rewards, flags and step counts `[B, T]`, which have a last dimension of 1 in the batch."""
        yield (keys.NEXT, keys.REWARD), rows.reward
        for name, array in zip(keys.FLAGS, (rows.last, rows.terminated, rows.truncated), strict=True):
            yield (keys.NEXT, name), array
            yield name, zeros_like(array)
        if rows.missing is not None:
            yield keys.MISSING, rows.missing
        if self.counts is not None:
            yield keys.STEP_COUNT, self.counts
            yield (keys.NEXT, keys.STEP_COUNT), self.counts + 1


def _tensor(array: Any, *shape: int) -> torch.Tensor:
    return as_tensor(array.reshape(shape))  # reshaping a tensor takes ten times as long as an array
