"""Join pieces of fragments to whole episodes: every frame is copied once, here.

    fragment A      fragment B                padded          flat
    a a a a         a a│c c        ─────▶     a a a a a a     a a a a a a b b b
    b b b│d         d d d d                   b b b 0 0 0

An episode is a list of pieces, a piece a stretch of one env row of one fragment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, is_non_tensor

from swath.keys import MASK, TIME, Key
from swath.rollout.episodes.entries import Tensor, in_rows, listed, non_tensor, rebuild
from swath.rollout.episodes.segments import mask_of


class Source:
    """One fragment `[*B, T]` (at least `[T]`), seen as env rows of T frames; its mask is left out.

    Nothing is copied: the fragment must not be written any more.
    """

    def __init__(self, fragment: TensorDictBase) -> None:
        self.entries = fragment.exclude(MASK)
        self._rows: dict[Key, Sequence[Any]] = {}

    def rows(self, key: Key) -> Sequence[Any]:
        """One entry, row by row; as numpy arrays where numpy can hold it, for slices of these cost a fraction."""
        if key not in self._rows:
            self._rows[key] = self._split(key)
        return self._rows[key]

    def _split(self, key: Key) -> Sequence[Any]:
        *batch, length = self.entries.batch_size
        entry = self.entries.get(key, None)
        if entry is None:
            raise KeyError(f"entry {key!r} is in some fragments and not in others; all must have the same entries")
        if is_non_tensor(entry):
            values = listed(entry)
            return [values[at : at + length] for at in range(0, len(values), length)]
        tensor: Tensor = entry.unsqueeze(0) if not batch else entry.flatten(0, len(batch) - 1)
        return list(_as_numpy(tensor.detach()))


@dataclass(frozen=True, slots=True)
class Piece:
    """The frames `start` to `stop` of one env row of a fragment: a view until it is joined."""

    source: Source
    row: int
    start: int
    stop: int

    @property
    def frames(self) -> int:
        """How many frames the piece has."""
        return self.stop - self.start


Pieces = Sequence[Piece]
"""One episode, its pieces in order; never empty."""


def frames_of(pieces: Pieces) -> int:
    """The length of an episode."""
    return sum(piece.frames for piece in pieces)


def flat(episodes: Sequence[Pieces]) -> TensorDict:
    """Episodes one behind the other, `[ΣTᵢ]`, without a mask."""
    return _joined(episodes, None, [sum(map(frames_of, episodes))], [TIME])


def padded(episodes: Sequence[Pieces]) -> TensorDict:
    """One episode per row, `[n, T_max]`: zeros behind the ends (None in non-tensor entries), and the mask."""
    lengths = [frames_of(episode) for episode in episodes]
    out = _joined(episodes, max(lengths), [len(lengths), max(lengths)], [None, TIME])
    return out.set(MASK, mask_of(torch.tensor(lengths, device=out.device)))


def _joined(
    episodes: Sequence[Pieces], longest: int | None, shape: Sequence[int], names: Sequence[str | None]
) -> TensorDict:
    """The episodes, each filled up to the longest if that is given, cut from every entry in one go."""
    sources = list(dict.fromkeys(piece.source for episode in episodes for piece in episode))
    cuts = _cuts(episodes, {source: number for number, source in enumerate(sources)}, longest)
    like = sources[0].entries

    def make(key: Key, entry: Any) -> Any:
        rows = [source.rows(key) for source in sources]
        rows.append([_nothing(entry, like.ndim, longest or 0)])
        return _join([rows[number][row][start:stop] for number, row, start, stop in cuts], shape)

    return rebuild(like, shape, names, make)


def _cuts(
    episodes: Sequence[Pieces], numbers: dict[Source, int], longest: int | None
) -> list[tuple[int, int, int, int]]:
    """(source, row, start, stop) of every piece; -1 is the filling, one row of it."""
    cuts = []
    for episode in episodes:
        cuts += [(numbers[piece.source], piece.row, piece.start, piece.stop) for piece in episode]
        if longest is not None:
            cuts.append((-1, 0, frames_of(episode), longest))
    return cuts


def _as_numpy(tensor: Tensor) -> Any:
    try:
        return tensor.numpy()
    except TypeError:  # on another device, or of a type that numpy has not
        return tensor


def _nothing(entry: Any, batch_dims: int, frames: int) -> Any:
    """So many frames of filling, cut as the entry's own are."""
    if is_non_tensor(entry):
        return [None] * frames
    return _as_numpy(entry.new_zeros(frames, *entry.shape[batch_dims:]))


def _join(parts: Sequence[Any], shape: Sequence[int]) -> Any:
    if isinstance(parts[0], list):
        return non_tensor([value for part in parts for value in part], shape)
    whole = torch.from_numpy(np.concatenate(parts)) if isinstance(parts[0], np.ndarray) else torch.cat(list(parts))
    return in_rows(whole, shape)
