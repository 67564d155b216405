"""Whole episodes out of fragments that begin and end anywhere.

    fragments of a row         open pieces        complete
    a a a b │ b b c c   ───▶   c c         ───▶   a a a,  b b b   ───▶   take(n): padded or flat

Nothing is copied before `take`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tensordict import TensorDict, TensorDictBase

from swath.keys import DONE, MASK, NEXT, TRAJ_IDS
from swath.options import TrajFormat
from swath.rollout.episodes.reshape import Frames, Piece, join, per_frame, per_frame_or_none, segment_ends, stretches_of
from swath.rollout.episodes.statistics import maker_of


@dataclass(slots=True)
class _Episode:
    """What is here of an episode; once it is complete, `end` is its last step in its last fragment.

    Its row is its worker, its place in the worker's flattened `*B`, and the worker that made it, as its ids say.
    """

    row: tuple[int, int, int]
    trajectory: int
    pieces: list[Piece] = field(default_factory=list)
    length: int = 0
    end: int = 0


class EpisodeAssembler:
    """Takes fragments `[*B, T]` one after another and hands out whole episodes, in order of completion.

    An env row is known by its worker and its place in the flattened `*B`; of a worker that brings what several others
    have made, by who made it, too. What it began goes on in its next fragment under the same trajectory id and is
    complete with `("next", "done")`; another id means that the rest was lost, and what there is of it is dropped.
    Without ids everything up to a done is one episode. Masked frames are left out.

    Pieces are views into the fragments, so nobody may write these any more; a frame is copied once, by `take`. For one
    thread at a time; nothing blocks.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[int, int, int], _Episode] = {}
        self._complete: deque[_Episode] = deque()
        self._floors: dict[int, int] = {}

    @property
    def ready(self) -> int:
        """How many complete episodes wait to be taken."""
        return len(self._complete)

    @property
    def frames(self) -> int:
        """How many frames it holds."""
        return sum(episode.length for episode in (*self._open.values(), *self._complete))

    def add(self, fragments: Mapping[int, TensorDictBase]) -> int:
        """Take in the next fragments `[*B, T]` or `[T]` of several workers, collected side by side.

        Episodes that are complete at one step of them come in the order of workers, then envs.

        Returns:
            How many frames were dropped, of episodes that will have no end.
        """
        complete: list[_Episode] = []
        dropped = sum(self._extend(worker, fragments[worker], complete) for worker in sorted(fragments))
        self._complete.extend(sorted(complete, key=lambda episode: episode.end))
        return dropped

    def take(self, count: int, layout: TrajFormat = "padded") -> TensorDict | None:
        """The next `count` episodes as one batch that owns its memory, `None` if there are not so many.

        Args:
            count: how many, at least 1.
            layout: `"padded"` is `[count, T_max]` with zeros behind the ends and `("collector", "mask")`; `"cat"` is
                `[ΣTᵢ]` without mask.
        """
        if count > len(self._complete):
            return None
        return join([self._complete.popleft().pieces for _ in range(count)], layout)

    def skip(self, worker: int, below: int) -> int:
        """Frames of a worker are missing: its episodes with ids below this one are dropped, also what comes of them.

        Episodes whose ids others have given stay.

        Returns:
            How many frames of them were here.
        """
        maker = maker_of(below)
        self._floors[maker] = max(below, self._floors.get(maker, below))
        broken = [row for row in self._open if row[::2] == (worker, maker) and self._open[row].trajectory < below]
        return sum(self._open.pop(row).length for row in broken)

    def drop(self, worker: int | None = None, rows: Collection[int] | None = None, *, complete: bool = True) -> int:
        """Forget episodes.

        Args:
            worker: only those of this worker.
            rows: only those of these rows of its flattened `*B`.
            complete: also those that are complete, not only those without an end.

        Returns:
            How many frames that were.
        """

        def kept(row: tuple[int, int, int]) -> bool:
            return worker not in (None, row[0]) or (rows is not None and row[1] not in rows)

        before = self.frames
        self._open = {row: episode for row, episode in self._open.items() if kept(row)}
        if complete:
            self._complete = deque(episode for episode in self._complete if kept(episode.row))
        return before - self.frames

    def _extend(self, worker: int, fragment: TensorDictBase, complete: list[_Episode]) -> int:
        done, ids = per_frame(fragment, (NEXT, DONE)), per_frame_or_none(fragment, TRAJ_IDS)
        firsts, lasts = stretches_of(*segment_ends(fragment))
        length, frames, dropped = done.shape[-1], Frames(fragment.exclude(MASK)), 0
        trajectories = [0] * len(lasts) if ids is None else ids.reshape(-1)[lasts].tolist()
        columns = firsts.tolist(), lasts.tolist(), trajectories, done.reshape(-1)[lasts].tolist()
        for first, last, trajectory, is_complete in zip(*columns, strict=True):
            row = (worker, last // length, maker_of(trajectory))
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
