"""Batches by trajectory: where trajectories end, and split, pad and cat.

    ids   0 0 0 1 │ 2 2 3 3          split            0 0 0      mask   1 1 1
          row 0   │ row 1     ─────────────────▶      1 . .             1 . .
                                                      2 2 .             1 1 .
                                                      3 3 .             1 1 .

A *run* is a stretch of one id within an env row, valid all over; a *segment* ends where a run does, and at done. Ids
and mask lie beside each other, in Swath's own batches under `"collector"`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from tensordict import (
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictBase,
    is_leaf_nontensor,
    is_non_tensor,
    is_tensor_collection,
)

from swath.keys import COLLECTOR, DONE, MASK, NEXT, TIME, TRAJ_IDS, Key, as_key, as_tuple
from swath.options import TrajFormat

Tensor: TypeAlias = torch.Tensor

LARGE_ROW = 4096
"""From this many bytes on, a row is too large to be copied twice."""


def per_frame(td: TensorDictBase, key: Key) -> Tensor:
    """The entry with one value per frame, as `[*B, T]`; a trailing dimension of one is dropped.

    Raises:
        KeyError: there is no such entry.
        RuntimeError: it holds more than one value per frame.
    """
    entry: Tensor = td[key]
    want = td.batch_size
    if entry.shape not in (want, (*want, 1)):
        got = list(entry.shape)
        raise RuntimeError(
            f"entry {key!r} has shape {got}; it must have one value per frame, {[*want]} or {[*want, 1]}"
        )
    return entry.reshape(want)


def per_frame_or_none(td: TensorDictBase, key: Key) -> Tensor | None:
    """As `per_frame`, `None` where there is no such entry."""
    return per_frame(td, key) if td.get(key, None) is not None else None


def run_ends(frames: Tensor, *labels: Tensor | None) -> Tensor:
    """The last frame of each stretch of a row in which no label changes.

    Args:
        frames: any tensor `[*B, T]`, for the shape and the device.
        labels: tensors `[*B, T]`; a missing one is None.

    Returns:
        `[*B, T]` bool.
    """
    ends = torch.zeros_like(frames, dtype=torch.bool)
    ends[..., -1:] = True
    for label in labels:
        if label is not None:
            ends[..., :-1] |= label[..., 1:] != label[..., :-1]
    return ends


def segment_ends(td: TensorDictBase, done: Tensor | None = None) -> Tensor:
    """The frames behind which nothing in this batch goes on, `[*B, T]` bool.

    They are the last frame of each row, those where `done` is set, those with another trajectory id behind them (if
    the batch has ids), and those beside masked frames; a masked frame stands alone.

    Args:
        td: a batch `[*B, T]`.
        done: `[*B, T]`, or `[*B, …, T]` if the batch has neither ids nor mask; by default `("next", "done")`.

    Raises:
        RuntimeError: done, ids or mask with more than one value per frame.
    """
    done = per_frame(td, (NEXT, DONE)) if done is None else done
    mask = per_frame_or_none(td, MASK)
    ends = done | run_ends(done, per_frame_or_none(td, TRAJ_IDS), mask)
    return ends if mask is None else ends | ~mask


def stretches_of(ends: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """First and last frame of each stretch of a batch between these ends `[*B, T]`, without masked ones.

    Returns:
        Numbers of frames in the flattened batch, int64 `[n]` both.
    """
    lasts = ends.reshape(-1).nonzero().squeeze(-1)
    firsts = torch.cat([lasts.new_zeros(1), lasts[:-1] + 1])[: len(lasts)]
    if mask is not None and not bool(mask.all()):
        valid = mask.reshape(-1)[lasts]
        return firsts[valid], lasts[valid]
    return firsts, lasts


def split_trajectories(
    td: TensorDictBase,
    *,
    prefix: Key | None = None,
    trajectory_key: Key | None = None,
    done_key: Key | None = None,
    as_nested: bool | torch.layout = False,
) -> TensorDictBase:
    """One row per trajectory of the batch: `[*B, T]` gives `[n, T_max]`, zeros behind the ends, and a mask.

    A trajectory is a run of one id within one env row; equal ids in different rows are not joined. Order is kept.
    Frames that the batch's mask leaves out belong to no trajectory and are left out. If every env row is one
    trajectory, the shape stays (`[T]` becomes `[1, T]`) and only the mask is added; the entries then share the memory
    of `td`. Non-tensor entries are None behind the ends. `td` itself is not changed.

    Args:
        td: a batch `[*B, T]`.
        prefix: where ids and mask are; by default `"collector"` if the batch has it, else the root.
        trajectory_key: the ids themselves, by default `(prefix, "traj_ids")`; the mask is written beside them.
        done_key: without ids they are taken from `("next", done_key)`, by default `("next", "done")`, and written.
        as_nested: True for nested tensors `[n, -1]` instead of zeros and mask, or the layout these shall have.

    Raises:
        KeyError: neither ids nor done are there.
        RuntimeError: ids or done hold more than one value per frame.
        ValueError: an entry changes its shape from frame to frame.
    """
    if trajectory_key is None:
        if prefix is None:
            prefix = () if td.get(COLLECTOR, None) is None else COLLECTOR
        trajectory_key = (*as_tuple(prefix), TRAJ_IDS[-1])
    mask_key = (*as_tuple(trajectory_key)[:-1], MASK[-1])
    mask = per_frame_or_none(td, mask_key if td.get(mask_key, None) is not None else MASK)
    out = td.copy()
    if td.get(trajectory_key, None) is None:
        out.set(trajectory_key, _ids_from_done(per_frame(td, (NEXT, *as_tuple(done_key or DONE))), mask))
    ids = per_frame(out, trajectory_key)
    firsts, lasts = stretches_of(run_ends(ids, ids, mask), mask)
    lengths = lasts - firsts + 1
    if as_nested is False and int(lengths.sum()) == len(lengths) * ids.shape[-1] == ids.numel():
        out.set(mask_key, torch.ones(out.batch_size, dtype=torch.bool, device=out.device))
        return out.unsqueeze(0) if out.ndim == 1 else out
    time, frames = td.names[-1], Frames(out if mask is None else out.exclude(mask_key))
    if as_nested is not False:
        places, shape = lengths.cumsum(0) - lengths, [int(lengths.sum())]
        return _nested(_copied([_Stretches(frames, firsts, lengths, places)], shape, time), lengths, as_nested)
    mask = _mask_of(lengths)
    places = torch.arange(len(lengths), device=lengths.device) * mask.shape[1]
    padded = _copied([_Stretches(frames, firsts, lengths, places)], mask.shape, time)
    for key, entry in out.items(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor):
        if isinstance(entry, NonTensorData):
            padded.set(key, NonTensorData(entry.data, batch_size=padded.batch_size))
    return padded.set(mask_key, mask)


def pad(episodes: Sequence[TensorDictBase]) -> TensorDict:
    """Episodes `[T_i]` as rows `[n, T_max]`, zeros behind the ends, with `("collector", "mask")`.

    Frames that an episode's own mask leaves out are left out.

    Raises:
        ValueError: no episodes, or one that is not `[T_i]`.
    """
    return join(_whole(episodes), "padded")


def cat(episodes: Sequence[TensorDictBase]) -> TensorDict:
    """Episodes `[T_i]` one behind the other, `[ΣT_i]`, without a mask; frames that a mask leaves out are left out.

    Raises:
        ValueError: no episodes, or one that is not `[T_i]`.
    """
    return join(_whole(episodes), "cat")


class Frames:
    """One batch `[*B, T]`, seen as a row of frames.

    Nothing is copied: the batch must not be written any more.
    """

    def __init__(self, entries: TensorDictBase) -> None:
        self.entries = entries
        self._flat: dict[Key, Any] = {}

    def of(self, key: Key, entry: Any = None) -> Any:
        """One entry, `[B·T, …]`; a list where it is no tensor. `entry` is the same as it is in the batch, if at hand.

        Raises:
            KeyError: there is no such entry.
        """
        if key not in self._flat:
            size = self.entries.batch_size
            entry = self.entries.get(key, None) if entry is None else entry
            if entry is None:
                raise KeyError(f"entry {key!r} is in some fragments and not in others; all must have the same entries")
            flat = entry.reshape(size.numel(), *entry.shape[len(size) :])
            self._flat[key] = flat.tolist() if is_non_tensor(flat) else flat
        return self._flat[key]


class Piece(NamedTuple):
    """So many frames of one env row, from `first` on: a view until it is joined."""

    frames: Frames
    first: int
    length: int


def join(episodes: Sequence[Sequence[Piece]], layout: TrajFormat) -> TensorDict:
    """Episodes as a batch with memory of its own.

    Args:
        episodes: at least one; the pieces of each in order.
        layout: `"padded"` is one episode per row, `[n, T_max]`, zeros behind the ends (None in non-tensor entries), and
            the mask; `"cat"` is one behind the other, `[ΣTᵢ]`, without a mask.
    """
    lengths = [sum(piece.length for piece in episode) for episode in episodes]
    longest, place = max(lengths), 0
    cuts: dict[Frames, list[tuple[int, int, int]]] = {}
    for episode, length in zip(episodes, lengths, strict=True):
        for piece in episode:
            cuts.setdefault(piece.frames, []).append((piece.first, piece.length, place))
            place += piece.length
        place += 0 if layout == "cat" else longest - length
    stretches = [_Stretches(frames, *torch.tensor(columns).unbind(-1)) for frames, columns in cuts.items()]
    if layout == "cat":
        return _copied(stretches, [place], TIME)
    out = _copied(stretches, [len(lengths), longest], TIME)
    return out.set(MASK, _mask_of(torch.tensor(lengths, device=out.device)))


class _Stretches:
    """Stretches of a batch's frames, and where they go: int64 `[n]` each."""

    def __init__(self, frames: Frames, firsts: Tensor, lengths: Tensor, places: Tensor) -> None:
        self.frames = frames
        self._cuts = torch.stack([firsts, lengths, places], 1)
        before = lengths.cumsum(0) - lengths
        at = torch.arange(int(lengths.sum()), device=before.device)
        self._numbers, self._places = (at + (each - before).repeat_interleave(lengths) for each in (firsts, places))
        self._are_all = len(at) == frames.entries.batch_size.numel() and torch.equal(self._numbers, at)

    def copy(self, key: Key, room: Any) -> None:
        """Copy one entry to a room for all: small rows at once, others stretch by stretch, with one copy less."""
        flat = self.frames.of(key)
        if isinstance(flat, list) or flat.nbytes >= LARGE_ROW * len(flat):
            for first, length, place in self._cuts.tolist():
                room[place : place + length] = flat[first : first + length]
        else:
            chosen = flat if self._are_all else flat.index_select(0, self._numbers.to(flat.device))
            room.index_copy_(0, self._places.to(flat.device), chosen)


def _copied(every: Sequence[_Stretches], shape: Sequence[int], time: str | None) -> TensorDict:
    """The stretches of one or several batches as a batch `[*shape]`, zeros or None where there are none."""

    def make(key: Key, entry: Any) -> Any:
        room = _room(every[0].frames.of(key, entry), math.prod(shape))
        for each in every:
            each.copy(key, room)
        if isinstance(room, list):
            return NonTensorStack(*map(NonTensorData, room)).reshape(*shape)
        return room.view(*shape, *room.shape[1:])

    return _rebuilt(every[0].frames.entries, shape, time, make)


def _room(like: Any, frames: int) -> Any:
    """Room for so many frames: None, or zeros, where possible from numpy, which gets large memory in less time."""
    if isinstance(like, list):
        return [None] * frames
    shape = (frames, *like.shape[1:])
    try:
        return torch.from_numpy(np.zeros(shape, like[:0].numpy().dtype))
    except (TypeError, RuntimeError):  # of a dtype that numpy lacks, on another device, or with a gradient
        return like.new_zeros(shape)


def _rebuilt(td: TensorDictBase, shape: Sequence[int], time: str | None, make: Callable[[Key, Any], Any]) -> TensorDict:
    """A TensorDict `[*shape]` with the keys of a batch, each entry made by `make(key, entry)`."""

    def build(inner: TensorDictBase, path: tuple[str, ...]) -> TensorDict:
        """Inner TensorDicts keep the batch dimensions of their own (agents)."""
        made: dict[str, Any] = {}
        for name in inner.keys():  # noqa: SIM118  a TensorDict iterates over its rows
            key = as_key((*path, name))
            try:
                entry = inner.get(name)
            except RuntimeError as error:
                raise ValueError(f"entry {key!r} changes its shape from frame to frame; pad it in the env") from error
            nests = is_tensor_collection(entry) and not is_non_tensor(entry)
            made[name] = build(entry, (*path, name)) if nests else make(key, entry)
        return TensorDict(made, batch_size=[*shape, *inner.batch_size[td.ndim :]], device=td.device)

    out = build(td, ())
    out.names = [None] * (len(shape) - 1) + [time]
    return out


def _nested(flat: TensorDict, lengths: Tensor, layout: torch.layout | bool) -> TensorDict:
    """Flat trajectories `[ΣT_i]` as nested tensors `[n, -1]`, `[n, T]` for equal lengths, or with torch's symbol."""
    offsets, cuts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]), lengths.tolist()
    if layout is torch.jagged:
        batch_size = torch.nested.nested_tensor_from_jagged(offsets.new_zeros(sum(cuts)), offsets).shape
    elif layout in (True, torch.strided):
        batch_size = torch.Size((len(cuts), cuts[0] if len(set(cuts)) == 1 else -1))
    else:
        raise ValueError(
            f"as_nested={layout!r} is no layout of nested tensors; use True, torch.strided or torch.jagged"
        )

    def make(key: Key, entry: Any) -> Any:
        if is_non_tensor(entry):
            raise ValueError(f"entry {key!r} is no tensor and cannot be nested; exclude it, or use as_nested=False")
        if layout is torch.jagged:
            return torch.nested.nested_tensor_from_jagged(entry, offsets)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The PyTorch API of nested tensors is in prototype stage", UserWarning)
            return torch.nested.as_nested_tensor(list(entry.split(cuts)), layout=torch.strided)

    return _rebuilt(flat, batch_size, flat.names[-1], make)


def _ids_from_done(done: Tensor, mask: Tensor | None) -> Tensor:
    """Trajectory ids 0, 1, … `[*B, T]` that change behind each `done` and with each row; -1 where the mask is False."""
    starts = torch.ones_like(done)
    starts[..., 1:] = done[..., :-1]
    ids = starts.reshape(-1).cumsum(0).reshape(done.shape) - 1
    return ids if mask is None else ids.masked_fill(~mask, -1)


def _mask_of(lengths: Tensor) -> Tensor:
    """The mask `[n, T_max]` of rows of these lengths `[n]`."""
    longest = int(lengths.max()) if len(lengths) else 0
    return torch.arange(longest, device=lengths.device) < lengths.unsqueeze(-1)


def _whole(episodes: Sequence[TensorDictBase]) -> list[list[Piece]]:
    if not episodes:
        raise ValueError("no episodes to join; give at least one")
    return [[_whole_row(episode)] for episode in episodes]


def _whole_row(episode: TensorDictBase) -> Piece:
    if episode.ndim != 1:
        raise ValueError(f"an episode has batch size [T], this one {list(episode.batch_size)}; split it first")
    mask = per_frame_or_none(episode, MASK)
    valid = episode if mask is None or bool(mask.all()) else episode[mask]
    return Piece(Frames(valid.exclude(MASK)), 0, len(valid))
