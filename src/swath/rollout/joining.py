"""Join pieces of fragments to whole episodes: every frame is copied once, here.

    fragment A [2, 4]      fragment B [2, 4]             padded [2, 5]          flat [8]
      a a a a ───────────▶ a a│c c          ┐            a a a a a a            a a a a a a b b b
      b b b│d              d d d d          ┘ ─────────▶ b b b 0 0 0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_non_tensor

from swath.keys import MASK, TIME, Key
from swath.rollout.entries import Tensor, listed, non_tensor, rebuild


class Rows:
    """One fragment `[*B, T]` (at least `[T]`), seen as env rows of T frames; its mask is left out.

    Nothing is copied: the fragment must not be written any more.
    """

    def __init__(self, fragment: TensorDictBase) -> None:
        self.entries = fragment.exclude(MASK)
        self._rows: dict[Key, Sequence[Any]] = {}

    def cut(self, key: Key, row: int, start: int, stop: int) -> Any:
        """The frames from `start` to `stop` of one row, as a view; of a non-tensor entry a list."""
        if key not in self._rows:
            self._rows[key] = self._split(self.entries.get(key))
        return self._rows[key][row][start:stop]

    def _split(self, entry: Any) -> Sequence[Any]:
        *batch, length = self.entries.batch_size
        if not is_non_tensor(entry):
            tensor: Tensor = entry.unsqueeze(0) if not batch else entry.flatten(0, len(batch) - 1)
            return tensor.unbind(0)
        values = listed(entry)
        return [values[at : at + length] for at in range(0, len(values), length)]


@dataclass(frozen=True, slots=True)
class Piece:
    """The frames `start` to `stop` of one env row of a fragment: a view until it is joined."""

    rows: Rows
    row: int
    start: int
    stop: int

    @property
    def frames(self) -> int:
        """How many frames the piece has."""
        return self.stop - self.start

    def cut(self, key: Key) -> Any:
        """The piece's part of one entry."""
        return self.rows.cut(key, self.row, self.start, self.stop)


Pieces = Sequence[Piece]
"""One episode, its pieces in order; never empty."""


def frames_of(pieces: Pieces) -> int:
    """The length of an episode."""
    return sum(piece.frames for piece in pieces)


def flat(episodes: Sequence[Pieces]) -> TensorDict:
    """Episodes one behind the other, `[ΣTᵢ]`, without a mask."""
    pieces = [piece for episode in episodes for piece in episode]

    def make(key: Key, entry: Any) -> Any:
        if is_non_tensor(entry):
            return non_tensor([value for piece in pieces for value in piece.cut(key)], [frames_of(pieces)])
        return torch.cat([piece.cut(key) for piece in pieces])

    return rebuild(pieces[0].rows.entries, [frames_of(pieces)], [TIME], make)


def padded(episodes: Sequence[Pieces]) -> TensorDict:
    """One episode per row, `[n, T_max]`: zeros behind the ends (None in non-tensor entries), and the mask."""
    lengths = [frames_of(episode) for episode in episodes]
    shape = [len(lengths), max(lengths)]

    def make(key: Key, entry: Any) -> Any:
        if is_non_tensor(entry):
            return non_tensor(_filled(episodes, key, [None] * shape[1], lengths), shape)
        return torch.cat(_parts(episodes, key, lengths)).unflatten(0, shape)

    like = episodes[0][0].rows.entries
    out = rebuild(like, shape, [None, TIME], make)
    return out.set(MASK, valid_frames(lengths, like.device))


def valid_frames(lengths: Sequence[int], device: torch.device | None) -> Tensor:
    """The mask `[n, T_max]` of rows of these lengths."""
    return torch.arange(max(lengths), device=device) < torch.tensor(lengths, device=device).unsqueeze(-1)
