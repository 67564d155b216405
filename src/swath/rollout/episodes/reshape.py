"""Batches by trajectory: their ends, splitting, padding, concatenation, and whole episodes from fragments.

    ids   0 0 0 1 │ 2 2 3 3          split            0 0 0      mask   1 1 1
          row 0   │ row 1     ─────────────────▶      1 . .             1 . .
                                                      2 2 .             1 1 .
                                                      3 3 .             1 1 .

A *run* is a stretch of valid frames with one id within an env row; a *segment* ends where a run does, and at done. Ids
and mask have the same prefix, in Swath's own batches `"collector"`.

    fragments of a row         open pieces        complete
    a a a b │ b b c c   ───▶   c c         ───▶   a a a,  b b b   ───▶   take(n): padded or flat

Frames are copied by `take` only.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase, is_leaf_nontensor, is_non_tensor

from swath.keys import COLLECTOR, DONE, MASK, NEXT, TIME, TRAJ_IDS, Key, as_tuple, order_entries
from swath.options import TrajFormat
from swath.rollout.episodes.statistics import worker_of_id

Tensor: TypeAlias = torch.Tensor


def per_frame(td: TensorDictBase, key: Key) -> Tensor:
    """Return an entry with one value per frame as `[*B, T]`, without a trailing dimension of one.

    Raises:
        KeyError: the entry is missing.
        RuntimeError: more than one value per frame.
    """
    entry: Tensor = td[key]
    if entry.shape not in (td.batch_size, (*td.batch_size, 1)):
        raise RuntimeError(f"entry {key!r} has shape {[*entry.shape]}; it must be {[*td.batch_size, 1]}, one per frame")
    return entry.reshape(td.batch_size)


def per_frame_or_none(td: TensorDictBase, key: Key) -> Tensor | None:
    """Return `per_frame`, or `None` if the entry is missing."""
    return per_frame(td, key) if td.get(key, None) is not None else None


def valid_rows(td: TensorDictBase) -> TensorDictBase:
    """Return the valid rows `[n]` of a batch `[*B, T]`: env by env, each in the order of time."""
    rows, mask = td.reshape(-1), td.get(MASK, None)
    return rows if mask is None else rows[mask.reshape(-1)]


def find_run_ends(frames: Tensor, *labels: Tensor | None) -> Tensor:
    """Return the last frame of each stretch of a row in which no label changes.

    Args:
        frames: any tensor `[*B, T]`, for the shape and the device.
        labels: tensors `[*B, T]`, or `None`.

    Returns:
        `[*B, T]` bool.
    """
    ends = torch.zeros_like(frames, dtype=torch.bool)
    ends[..., -1:] = True
    for label in labels:
        if label is not None:
            ends[..., :-1] |= label[..., 1:] != label[..., :-1]
    return ends


def segment_ends(td: TensorDictBase) -> tuple[Tensor, Tensor]:
    """Return whether each frame is the last of its segment, and whether it is valid, both `[*B, T]` bool.

    A segment ends with the last frame of a row, where `done` is set, where the trajectory id changes (if the batch has
    ids), and before masked frames; a masked frame is a segment.

    Raises:
        RuntimeError: done, ids or mask with more than one value per frame.
    """
    done, mask = per_frame(td, (NEXT, DONE)), per_frame_or_none(td, MASK)
    valid = torch.ones_like(done) if mask is None else mask
    return done | find_run_ends(done, per_frame_or_none(td, TRAJ_IDS), mask) | ~valid, valid


def find_segments(ends: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return first and last frames of the segments between ends `[*B, T]`, without masked ones.

    Returns:
        Numbers of frames in the flattened batch, int64 `[n]` both.
    """
    lasts = ends.reshape(-1).nonzero().squeeze(-1)
    firsts = torch.cat([lasts.new_zeros(1), lasts[:-1] + 1])[: len(lasts)]
    valid = slice(None) if mask is None else mask.reshape(-1)[lasts]
    return firsts[valid], lasts[valid]


def split_trajectories(
    td: TensorDictBase,
    *,
    prefix: Key | None = None,
    trajectory_key: Key | None = None,
    done_key: Key | None = None,
    as_nested: bool | torch.layout = False,
) -> TensorDictBase:
    """Split a batch `[*B, T]` into one row per trajectory, `[n, T_max]` with zeros after the ends and a mask.

    A trajectory is a run of one id within one env row; equal ids in different rows are not joined. Order is kept.
    Masked frames of the batch are left out. If every env row is one trajectory, the shape stays (`[T]` becomes
    `[1, T]`) and only the mask is added; the entries then share the memory of `td`. Non-tensor entries are None after
    the ends. `td` itself is not changed.

    Args:
        td: a batch `[*B, T]`.
        prefix: prefix of ids and mask; by default `"collector"` if the batch has it, else the root.
        trajectory_key: key of the ids, by default `(prefix, "traj_ids")`; the mask gets the same prefix.
        done_key: ids that are missing are computed from `("next", done_key)`, by default `("next", "done")`, and
            written.
        as_nested: True for nested tensors `[n, -1]` instead of zeros and mask, or their layout.

    Raises:
        KeyError: neither ids nor done.
        RuntimeError: ids or done with more than one value per frame, or an entry whose shape changes between frames.
    """
    if trajectory_key is None:
        default = () if td.get(COLLECTOR, None) is None else COLLECTOR
        trajectory_key = (*as_tuple(default if prefix is None else prefix), TRAJ_IDS[-1])
    mask_key = (*as_tuple(trajectory_key)[:-1], MASK[-1])
    mask = per_frame_or_none(td, mask_key if td.get(mask_key, None) is not None else MASK)
    out = td.copy()
    if td.get(trajectory_key, None) is None:
        done = per_frame(td, (NEXT, *as_tuple(done_key or DONE)))
        starts = torch.ones_like(done)
        starts[..., 1:] = done[..., :-1]
        out.set(trajectory_key, starts.reshape(-1).cumsum(0).reshape(done.shape) - 1)
    ids = per_frame(out, trajectory_key)
    firsts, lasts = find_segments(find_run_ends(ids, ids, mask), mask)
    lengths = lasts - firsts + 1
    if as_nested is False and int(lengths.sum()) == len(lengths) * ids.shape[-1] == ids.numel():
        out.set(mask_key, torch.ones(out.batch_size, dtype=torch.bool, device=out.device))
        return out.unsqueeze(0) if out.ndim == 1 else out
    frames, names = Frames(out.exclude(mask_key)), [None, td.names[-1]]
    if as_nested is not False:
        cuts = torch.stack([firsts, lengths, lengths.cumsum(0) - lengths], 1)
        return _nested(_copy_stretches({frames: cuts}, [int(lengths.sum())], [None]), lengths, as_nested, names)
    mask = _mask_of(lengths)
    cuts = torch.stack([firsts, lengths, torch.arange(len(mask), device=mask.device) * mask.shape[1]], 1)
    return _copy_stretches({frames: cuts}, mask.shape, names).set(mask_key, mask)


@dataclass(frozen=True, eq=False)
class Frames:
    """A view of a batch `[*B, T]` as a row of frames; the batch must not be written any more."""

    entries: TensorDictBase

    def entry(self, key: Key) -> Any:
        """Return an entry `[B·T, …]`; a list for a non-tensor.

        Raises:
            KeyError: the entry is missing.
            RuntimeError: its shape changes between frames.
        """
        if (entry := self.entries.get(key, None)) is None:
            raise KeyError(f"entry {key!r} is in some fragments and not in others; all must have the same entries")
        flat: Any = entry.flatten(0, self.entries.ndim - 1)
        return flat.tolist() if is_non_tensor(flat) else flat


class Piece(NamedTuple):
    """A view of `length` frames of one env row, from `first` on."""

    frames: Frames
    first: int
    length: int


def join(episodes: Sequence[Sequence[Piece]], layout: TrajFormat) -> TensorDict:
    """Copy episodes into a new batch.

    Args:
        episodes: at least one; the pieces of each in order.
        layout: `"padded"` for one episode per row, `[n, T_max]`, with zeros after the ends (None in non-tensor entries)
            and the mask; `"cat"` for their concatenation, `[ΣTᵢ]`, without a mask.

    Raises:
        KeyError: an entry is missing in some of their batches.
    """
    lengths = [sum(piece.length for piece in episode) for episode in episodes]
    longest, place = max(lengths), 0
    cuts: dict[Frames, list[tuple[int, int, int]]] = {}
    for episode, length in zip(episodes, lengths, strict=True):
        for piece in episode:
            cuts.setdefault(piece.frames, []).append((piece.first, piece.length, place))
            place += piece.length
        place += 0 if layout == "cat" else longest - length
    stretches = {frames: torch.tensor(rows) for frames, rows in cuts.items()}
    if layout == "cat":
        return _copy_stretches(stretches, [place], [TIME])
    out = _copy_stretches(stretches, [len(lengths), longest], [None, TIME])
    return out.set(MASK, _mask_of(torch.tensor(lengths, device=out.device)))


def _copy_stretches(
    stretches: Mapping[Frames, Tensor], shape: Sequence[int], names: Sequence[str | None]
) -> TensorDict:
    """Copy stretches of one or several batches into a new batch `[*shape]`, with zeros or None between them.

    Args:
        stretches: first frames, lengths, and places in the new batch, int64 `[n, 3]`.
        shape: of the new batch.
        names: of its dimensions.
    """
    batches, template = [], next(iter(stretches))
    for frames, cuts in stretches.items():  # indices of frames in their batch, and in the new one
        firsts, lengths, places = cuts.unbind(1)
        rows, begins = torch.arange(int(lengths.sum()), device=cuts.device), lengths.cumsum(0) - lengths
        numbers, targets = (rows + (starts - begins).repeat_interleave(lengths) for starts in (firsts, places))
        batches.append((frames, numbers, targets))

    def copy_entry(key: Key) -> Any:
        example, n_frames = template.entry(key), math.prod(shape)
        plain = isinstance(example, list)
        room: Any = [None] * n_frames if plain else example.new_zeros((n_frames, *example.shape[1:]))
        for frames, numbers, places in batches:
            flat = frames.entry(key)
            for number, place in zip(numbers.tolist(), places.tolist(), strict=True) if plain else ():
                room[place] = flat[number]
            if not plain:
                room.index_copy_(0, places.to(flat.device), flat.index_select(0, numbers.to(flat.device)))
        if plain:
            return NonTensorStack(*map(NonTensorData, room)).reshape(*shape)
        return room.view(*shape, *room.shape[1:])

    # Groups of agents keep their further batch dimensions.
    out = template.entries.empty(recurse=True).flatten(0, template.entries.ndim - 1)[0].expand(*shape)
    keys = [*template.entries.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)]
    for key in keys:
        out.set(key, copy_entry(key))
    out.names = names
    return order_entries(out, keys)


def _nested(flat: TensorDict, lengths: Tensor, layout: torch.layout | bool, names: Sequence[str | None]) -> TensorDict:
    """Turn flat trajectories `[ΣT_i]` into nested tensors `[n, -1]`, `[n, T]` for equal lengths, or torch's symbol."""
    if layout not in (True, torch.strided, torch.jagged):
        raise ValueError(f"as_nested={layout!r} is none of True, torch.strided and torch.jagged")
    offsets, cuts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]), lengths.tolist()

    def make(key: Key, entry: Any) -> Any:
        if is_non_tensor(entry):
            raise ValueError(f"entry {key!r} is no tensor and cannot be nested; exclude it, or use as_nested=False")
        if layout is torch.jagged:
            return torch.nested.nested_tensor_from_jagged(entry, offsets)
        return torch.nested.as_nested_tensor(list(entry.split(cuts)), layout=torch.strided)

    shape = torch.Size((len(cuts), cuts[0] if len({*cuts}) == 1 else -1))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors is in prototype stage", UserWarning)
        size = make("", offsets.new_zeros(sum(cuts))).shape if layout is torch.jagged else shape
        return flat.named_apply(make, nested_keys=True, batch_size=size, names=names, is_leaf=is_leaf_nontensor)


def _mask_of(lengths: Tensor) -> Tensor:
    """Return the mask `[n, T_max]` for lengths `[n]`."""
    longest = int(lengths.max()) if len(lengths) else 0
    return torch.arange(longest, device=lengths.device) < lengths.unsqueeze(-1)


@dataclass(slots=True)
class _Episode:
    """The pieces of an episode; `end` is the step of a complete one within its last fragment.

    Its row is its worker, its index in the worker's flattened `*B`, and the worker that assigned its id.
    """

    row: tuple[int, int, int]
    trajectory: int
    pieces: list[Piece] = field(default_factory=list)
    length: int = 0
    end: int = 0


class EpisodeAssembler:
    """Assembles whole episodes from consecutive fragments `[*B, T]`, in order of completion.

    An env row is identified by its worker and its index in the flattened `*B`, and by the worker that assigned its ids,
    since a worker may pass on fragments of others. An episode continues in the next fragment of the row under the same
    trajectory id, and is complete with `("next", "done")`; under another id its rest was lost, and its frames are
    dropped. Without ids, an episode is everything up to a done. Masked frames are left out.

    Pieces are views of the fragments, which must not be written any more; a frame is copied once, by `take`. Used by
    one thread at a time; does not block.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[int, int, int], _Episode] = {}
        self._complete: deque[_Episode] = deque()
        self._floors: dict[int, int] = {}

    @property
    def ready(self) -> int:
        """Return the number of complete episodes that wait to be taken."""
        return len(self._complete)

    @property
    def frames(self) -> int:
        """Return the number of frames in it."""
        return sum(episode.length for episode in (*self._open.values(), *self._complete))

    def add(self, fragments: Mapping[int, TensorDictBase]) -> int:
        """Add the next fragments `[*B, T]` or `[T]` of several workers, which were collected in parallel.

        Episodes that end in the same step come in the order of workers, then envs.

        Returns:
            The number of frames dropped, of episodes whose rest was lost.
        """
        complete: list[_Episode] = []
        dropped = sum(self._extend(worker, fragments[worker], complete) for worker in sorted(fragments))
        self._complete.extend(sorted(complete, key=lambda episode: episode.end))
        return dropped

    def next_batch(self, count: int, layout: TrajFormat = "padded") -> TensorDict | None:
        """Return the next `count` episodes as one new batch, or `None` if there are fewer.

        Args:
            count: number of episodes, at least 1.
            layout: `"padded"` for `[count, T_max]` with zeros after the ends and `("collector", "mask")`; `"cat"` for
                `[ΣTᵢ]` without mask.
        """
        if count > len(self._complete):
            return None
        return join([self._complete.popleft().pieces for _ in range(count)], layout)

    def drop_below(self, worker: int, below: int) -> int:
        """Drop the episodes of a worker with ids below this one, now and in later fragments: their frames were lost.

        Episodes whose ids another worker has assigned stay.

        Returns:
            The number of frames dropped now.
        """
        origin = worker_of_id(below)
        self._floors[origin] = max(below, self._floors.get(origin, below))
        broken = [row for row in self._open if row[::2] == (worker, origin) and self._open[row].trajectory < below]
        return sum(self._open.pop(row).length for row in broken)

    def drop(self, worker: int | None = None, rows: Collection[int] | None = None, *, complete: bool = True) -> int:
        """Drop episodes.

        Args:
            worker: only episodes of this worker.
            rows: only episodes in certain rows of its flattened `*B`.
            complete: also complete episodes, not only open ones.

        Returns:
            The number of frames dropped.
        """

        def is_kept(row: tuple[int, int, int]) -> bool:
            return worker not in (None, row[0]) or (rows is not None and row[1] not in rows)

        before = self.frames
        self._open = {row: episode for row, episode in self._open.items() if is_kept(row)}
        if complete:
            self._complete = deque(episode for episode in self._complete if is_kept(episode.row))
        return before - self.frames

    def _extend(self, worker: int, fragment: TensorDictBase, complete: list[_Episode]) -> int:
        done, ids = per_frame(fragment, (NEXT, DONE)), per_frame_or_none(fragment, TRAJ_IDS)
        firsts, lasts = find_segments(*segment_ends(fragment))
        length, frames, dropped = done.shape[-1], Frames(fragment.exclude(MASK)), 0
        trajectories = [0] * len(lasts) if ids is None else ids.reshape(-1)[lasts].tolist()
        columns = firsts.tolist(), lasts.tolist(), trajectories, done.reshape(-1)[lasts].tolist()
        for first, last, trajectory, is_complete in zip(*columns, strict=True):
            row = (worker, last // length, worker_of_id(trajectory))
            piece = Piece(frames, first, last - first + 1)
            if trajectory < self._floors.get(row[2], 0):
                dropped += piece.length
                continue
            episode = self._open.setdefault(row, _Episode(row, trajectory))
            if episode.trajectory != trajectory:
                dropped += episode.length
                episode = self._open[row] = _Episode(row, trajectory)
            episode.pieces.append(piece)
            episode.length += piece.length
            if is_complete:
                episode.end = last % length
                complete.append(self._open.pop(row))
        return dropped
