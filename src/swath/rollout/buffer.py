"""The buffer of a fragment's steps, the arrays `[B, T, …]` that are handed out, and the batch built from them.

    Step t ──▶ room[t]        observations, policy outputs, next observations, rewards: memory `[T, B, …]`, used again
           ──▶ flags          ends, rows that are no transition
    seal   ──▶ fresh arrays   `[B, T, …]`, copied in one go; large rows are written there at once

Writing the rows of all envs side by side touches a tenth of the memory lines of rows `[:, t]`, and leaves the caches to
the policy and the envs. The receiver owns the arrays; the next fragment gets new ones.

Steps of TensorDict envs are copied, and stacked at the end, lazily where shapes change. Entries are copied and stacked
one by one, which takes less than half as long as with whole TensorDicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase

from swath import keys
from swath.keys import Key, as_tuple, under_next
from swath.rollout.hosts.base import TensorDictSpec
from swath.rollout.loop import Step
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

    reward: Array
    terminated: Array
    truncated: Array
    valid: Array | None = None
    restarted: Sequence[int] = ()

    @property
    def last(self) -> Array:
        """Return whether each row ends its episode."""
        return np.logical_or(self.terminated, self.truncated)

    def void(self, envs: Sequence[int] | slice, steps: int | slice) -> None:
        """Mark rows as no transitions."""
        if self.valid is None:
            self.valid = np.ones(self.reward.shape, np.bool_)
        self.valid[:, steps][envs] = False

    def mark(self, t: int, step: Step) -> None:
        """Write the ends, void rows and truncations before step `t`.

        The row before is the last good row of an env that failed, unless its episode had ended there.
        """
        ends = step.ends
        if ends.envs.size:  # a view of the column takes a third of the time
            self.terminated[:, t][ends.envs], self.truncated[:, t][ends.envs] = ends.terminated, ends.truncated
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
        valid = np.ones(self.reward.shape, np.bool_) if self.valid is None else self.valid
        last = np.where(valid, np.arange(valid.shape[1]), -1).max(axis=1)
        for t in {*last.tolist()} - {-1}:
            self.truncate(np.flatnonzero(last == t), t)


@dataclass(kw_only=True)
class Rows(Flags):
    """T steps of B envs, all arrays `[B, T, …]`.

    Attributes:
        observation: one array per observation leaf.
        outputs: one array per policy output, action leaves first.
        next_observation: what the steps led to, one array per observation leaf.
    """

    observation: Leaves = field(default_factory=list)
    outputs: Leaves = field(default_factory=list)
    next_observation: Leaves = field(default_factory=list)

    def blank_from(self, n_steps: int) -> None:
        """Fill rows from step `n_steps` on with zeros, and mark them as no transitions."""
        super().blank_from(n_steps)
        for array in (*self.observation, *self.outputs, *self.next_observation):
            array[:, n_steps:] = 0


@dataclass(kw_only=True)
class PlannedRows(Rows):
    """T steps of B envs of TorchRL's, as arrays that become a batch in TorchRL's form.

    Attributes:
        entries: keys of the observation and of the outputs, in the order of the arrays.
        order: all keys of a step, in the order of the batch.
        batch_shape: `*B`.
    """

    entries: tuple[tuple[Key, ...], tuple[Key, ...]]
    order: tuple[Key, ...]
    batch_shape: tuple[int, ...]

    def truncate(self, envs: Sequence[int] | Array, t: int) -> None:
        """Mark the episodes of the envs as truncated with step `t`, also if they terminated, as TorchRL does."""
        self.truncated[envs, t] = True

    def batch(self, extras: Mapping[Key, torch.Tensor], *, compact: bool) -> Any:
        """Return the batch `[*B, T]` with further entries."""
        shape, (observed, outputs) = (*self.batch_shape, self.reward.shape[1]), self.entries
        leaves = [*zip((*observed, *outputs), (*self.observation, *self.outputs), strict=True)]
        if not compact:
            leaves += zip(map(under_next, observed), self.next_observation, strict=True)
        tensors = {key: _tensor(leaf, *shape, *leaf.shape[2:]) for key, leaf in leaves}
        tensors[keys.NEXT, keys.REWARD] = _tensor(self.reward, *shape, 1)
        for name, array in zip(keys.FLAGS, (self.last, self.terminated, self.truncated), strict=True):
            tensors[keys.NEXT, name] = _tensor(array, *shape, 1)
            tensors[name] = torch.zeros((*shape, 1), dtype=torch.bool)
        in_order = {key: tensors.pop(key) for key in self.order if key in tensors}
        names = [*[None] * len(self.batch_shape), keys.TIME]
        return TensorDict(in_order | tensors | dict(extras), batch_size=shape, names=names)


class Buffer:
    """Room for fragments of T steps, one after another.

    Args:
        observation: example of the observation leaves `[B, …]`.
        outputs: example of the policy's outputs `[B, …]`.
        n_steps: T.
        make_rows: returns rows for their flags; `Rows`, or a function of the same keywords.
    """

    def __init__(
        self, observation: Leaves, outputs: Leaves, n_steps: int, make_rows: Callable[..., Rows] = Rows
    ) -> None:
        self._make_rows = make_rows
        self._n_envs, self.n_steps, self._n_observed = len(observation[0]), n_steps, len(observation)
        self._like = [*observation, *outputs, np.empty(self._n_envs, np.float32), *observation]
        self._in_place = [self._n_envs == 1 or leaf[0].nbytes >= LARGE_ROW for leaf in self._like]
        self._rooms = [self._room(place) for place in range(len(self._like))]

    def open(self) -> Rows:
        """Return rows for one fragment, which get their arrays from `seal`; then the next one may be opened."""
        self._rooms = [self._room(at) if new else self._rooms[at] for at, new in enumerate(self._in_place)]
        terminated, truncated = np.zeros((2, self._n_envs, self.n_steps), np.bool_)
        reward = np.empty_like(truncated, np.float32)
        return self._make_rows(reward=reward, terminated=terminated, truncated=truncated)

    def write(self, rows: Rows, t: int, step: Step) -> None:
        """Write step `t`."""
        leaves = (*step.observation, *step.outputs, step.reward, *step.next_observation)
        for room, leaf in zip(self._rooms, leaves, strict=True):
            room[t] = leaf
        rows.mark(t, step)

    def seal(self, rows: Rows) -> None:
        """Set the arrays of rows whose steps are all written, copied into the order of the batch if in another."""
        turned = [room.swapaxes(0, 1) for room in self._rooms]
        arrays = [room if stays else _contiguous(room) for room, stays in zip(turned, self._in_place, strict=True)]
        n = self._n_observed
        rows.observation, rows.next_observation, (*rows.outputs, rows.reward) = arrays[:n], arrays[-n:], arrays[n:-n]

    def _room(self, place: int) -> Any:
        """Return uninitialised room `[T, B, …]` for an entry; in memory `[B, T, …]` if rows are written in place."""
        like, in_place = self._like[place], self._in_place[place]
        shape = (len(like), self.n_steps) if in_place else (self.n_steps, len(like))
        empty: Any = torch.empty if isinstance(like, torch.Tensor) else np.empty
        room = empty((*shape, *like.shape[1:]), dtype=like.dtype)
        return room.swapaxes(0, 1) if in_place else room


def _contiguous(room: Any) -> Any:
    """Return a contiguous copy; torch's transposition is up to twice as quick as numpy's."""
    copy = torch.as_tensor(room).clone(memory_format=torch.contiguous_format)
    return copy if isinstance(room, torch.Tensor) else copy.numpy()


class TensorDictRows(Flags):
    """T steps of B envs as one TensorDict `[*B, T]`.

    Args:
        spec: properties of the envs.
        example: a first observation with the policy's outputs, `[*B]`.
        n_steps: T.

    Attributes:
        spec: properties of the envs.
        steps: copies of the steps, since some envs and policies write every step into the same memory: entries by key,
            or a TensorDict of another kind `[*B]`.
    """

    def __init__(self, spec: TensorDictSpec, example: TensorDictBase, n_steps: int) -> None:
        terminated, truncated = np.zeros((2, spec.num_envs, n_steps), np.bool_)
        super().__init__(reward=np.zeros_like(truncated, np.float32), terminated=terminated, truncated=truncated)
        self.spec, self.steps, self._example = spec, list[Any](), example
        self._structure: TensorDictBase | None = None  # the nested TensorDicts of a step, without entries

    @property
    def next_observation(self) -> list[Any]:
        """Return what the steps led to, one tensor per observation key."""
        dim = len(self.spec.batch_shape)
        return [
            torch.stack([step.get(under_next(key)) for step in self.steps], dim) for key in self.spec.observation_keys
        ]

    def append(self, step: TensorDictBase) -> None:
        """Append a copy of a step."""
        if type(step) is not TensorDict:
            self.steps.append(step.clone())
            return
        if self._structure is None:
            self._structure = step.empty(recurse=True)
        self.steps.append({key: value.clone() for key, value in _entries(step)})

    def truncate(self, envs: Sequence[int] | Array, t: int) -> None:
        """Set the truncated and done flags of the envs in step `t`, in every group."""
        if not len(envs):
            return
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
            like = self._tensordict(self.steps[-1])
        else:
            like, device = self.spec.host.imagine(), self._example.device
            like = (like.clear_device_() if device is None else like.to(device)).update(self._example)
        blank = like.apply(torch.zeros_like, filter_empty=False)
        del self.steps[n_steps:]
        for _ in range(n_steps, self.reward.shape[1]):
            self.append(blank)
        super().blank_from(n_steps)

    def batch(self, extras: Mapping[Key, torch.Tensor], *, compact: bool) -> Any:
        """Return the batch `[*B, T]` with further entries."""
        batch = self._stack()
        batch.refine_names(..., keys.TIME)
        batch.clear_device_()
        if compact:
            batch = batch.exclude(*(under_next(key) for key in self.spec.observation_keys))
        return _set_all(batch, extras)

    def _stack(self) -> Any:
        shape, first, structure = self.spec.batch_shape, self.steps[0], self._structure
        if structure is not None and all(type(step) is dict and step.keys() == first.keys() for step in self.steps):
            with suppress(RuntimeError):  # shapes change
                entries = {key: torch.stack([step[key] for step in self.steps], len(shape)) for key in first}
                return _set_all(structure.unsqueeze(len(shape)).expand(*shape, len(self.steps)), entries)
        return LazyStackedTensorDict.maybe_dense_stack([*map(self._tensordict, self.steps)], dim=len(shape))

    def _tensordict(self, step: Any) -> TensorDictBase:
        structure = self._structure
        return step if structure is None or type(step) is not dict else _set_all(structure.empty(recurse=True), step)


class TensorDictBuffer:
    """Room for fragments of T steps of TensorDict envs.

    Args:
        spec: properties of the envs.
        example: a first observation with the policy's outputs, `[*B]`.
        n_steps: T.
    """

    def __init__(self, spec: TensorDictSpec, example: TensorDictBase, n_steps: int) -> None:
        # Returns rows for one fragment.
        self.open = partial(TensorDictRows, spec, example, n_steps)

    def write(self, rows: TensorDictRows, t: int, step: Step) -> None:
        """Write step `t`."""
        root, ends = step.outputs[0], step.ends
        rows.append(root)
        rows.reward[:, t] = step.reward
        rows.mark(t, step)
        if ends.truncated.any():  # perhaps by a limit that the loop counts
            n, flags = len(rows.reward), [root.get(under_next(key)) for key in rows.spec.done_keys]
            done = torch.stack([flag.reshape(n, -1).any(1) for flag in flags]).any(0).cpu().numpy()
            rows.truncate(ends.envs[ends.truncated & ~done[ends.envs]], t)

    def seal(self, rows: TensorDictRows) -> None:
        """Do nothing: `TensorDictRows.batch` stacks the steps."""


def _entries(td: TensorDict, path: tuple[str, ...] = ()) -> Iterator[tuple[Key, Any]]:
    """Yield the entries of nested plain TensorDicts; a TensorDict of another kind, as a lazy stack, is an entry."""
    for key, value in td.items():
        if type(value) is TensorDict:
            yield from _entries(value, (*path, key))
        else:
            yield (*path, key) if path else key, value


def _set_all(td: TensorDictBase, entries: Mapping[Key, Any]) -> TensorDictBase:
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
        track_ids: whether to add trajectory ids.
        track_version: whether to add the second pair of version entries.
        compact_obs: whether to leave out the observations under `"next"`.
        masked: whether to add the mask also where all rows are transitions.
        open: whether env and policy may write any entry, also entries that are not delivered.
    """

    batch_shape: tuple[int, ...]
    observation: tuple[Key, ...]
    outputs: tuple[Key, ...]
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
    ids: Array
    counts: Array | None
    version: int | Array
    steps: int | None = None

    @property
    def frames(self) -> int:
        """Return the number of rows that are transitions."""
        return self.ids.size if self.rows.valid is None else int(self.rows.valid.sum())

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
        entries |= {key: _tensor(leaf, *shape, 1) for key, leaf in self._flags(rows)}
        return TensorDict(entries | labels, batch_size=shape, names=[*[None] * len(layout.batch_shape), keys.TIME])

    def _labels(self, layout: Layout, shape: tuple[int, ...]) -> Iterator[tuple[Key, torch.Tensor]]:
        """Yield ids, mask and versions, `[*B, T]`."""
        if layout.track_ids:
            yield keys.TRAJ_IDS, _tensor(self.ids, *shape)
        if self.rows.valid is not None:
            yield keys.MASK, _tensor(self.rows.valid, *shape)
        elif layout.masked:
            yield keys.MASK, torch.ones(shape, dtype=torch.bool)
        version = torch.as_tensor(self.version).unsqueeze(-1).expand(self.ids.shape).reshape(shape)
        yield keys.VERSION, version
        if layout.track_version:
            for key in (keys.TRACKED_VERSION, (keys.NEXT, keys.TRACKED_VERSION)):
                yield key, version.clone(memory_format=torch.contiguous_format)

    def _flags(self, rows: Rows) -> Iterator[tuple[Key, Array]]:
        """Yield rewards, flags and step counts `[B, T]`, which have a last dimension of 1 in the batch."""
        yield (keys.NEXT, keys.REWARD), rows.reward
        for name, array in zip(keys.FLAGS, (rows.last, rows.terminated, rows.truncated), strict=True):
            yield (keys.NEXT, name), array
            yield name, np.zeros(array.shape, dtype=np.bool_)
        if self.counts is not None:
            yield keys.STEP_COUNT, self.counts
            yield (keys.NEXT, keys.STEP_COUNT), self.counts + 1


def _tensor(array: Any, *shape: int) -> torch.Tensor:
    shaped = array.reshape(shape)  # reshaping a tensor takes ten times as long as an array
    return torch.from_numpy(shaped) if isinstance(shaped, np.ndarray) else shaped
