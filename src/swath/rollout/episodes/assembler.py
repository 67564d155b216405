"""Whole episodes out of fragments that begin and end anywhere.

    fragments of a row         open pieces        complete
    a a a b │ b b c c   ───▶   c c         ───▶   a a a,  b b b   ───▶   take(n): padded or flat

Nothing is copied before `take`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, get_args

from tensordict import TensorDict, TensorDictBase

from swath.keys import DONE, MASK, NEXT, TRAJ_IDS
from swath.options import TrajFormat
from swath.rollout.episodes import joining
from swath.rollout.episodes.entries import Tensor, per_frame, per_frame_or_none
from swath.rollout.episodes.joining import Piece, Source, frames_of
from swath.rollout.episodes.segments import run_ends
from swath.rollout.episodes.trajectory_ids import maker_of

Row: TypeAlias = tuple[int, int, int]
"""An env row: its worker, its place in the worker's flattened `*B`, and who made it, as its ids say."""


class Segment(NamedTuple):
    """A stretch of one trajectory within one row of a fragment, valid all over."""

    row: int
    start: int
    stop: int
    trajectory: int
    complete: bool


@dataclass(slots=True)
class _Open:
    """An episode whose end has not come yet."""

    trajectory: int
    pieces: list[Piece] = field(default_factory=list)


class _Complete(NamedTuple):
    """An episode that waits to be taken, and the step of its last fragment behind its end."""

    stop: int
    row: Row
    trajectory: int
    pieces: list[Piece]


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
        self._open: dict[Row, _Open] = {}
        self._complete: deque[_Complete] = deque()
        self._floors: dict[int, int] = {}

    @property
    def ready(self) -> int:
        """How many complete episodes wait to be taken."""
        return len(self._complete)

    @property
    def trajectories(self) -> list[int]:
        """Trajectory ids of the complete episodes, in the order in which they are taken."""
        return [one.trajectory for one in self._complete]

    @property
    def frames(self) -> int:
        """How many frames it holds."""
        held = [one.pieces for one in self._open.values()]
        return sum(map(frames_of, [*held, *(one.pieces for one in self._complete)]))

    def add(self, fragment: TensorDictBase, worker: int = 0) -> int:
        """Take in the next fragment of one worker, `[*B, T]` or `[T]`.

        Returns:
            How many frames were dropped, of episodes that will have no end.
        """
        return self.add_round({worker: fragment})

    def add_round(self, fragments: Mapping[int, TensorDictBase]) -> int:
        """Take in fragments of several workers that were collected side by side.

        Episodes that are complete at one step of them come in the order of workers, then envs.

        Returns:
            How many frames were dropped, of episodes that will have no end.
        """
        dropped = 0
        complete: list[_Complete] = []
        for worker in sorted(fragments):
            dropped += self._extend(worker, fragments[worker], complete)
        complete.sort(key=lambda one: one.stop)
        self._complete.extend(complete)
        return dropped

    def take(self, count: int, layout: TrajFormat = "padded") -> TensorDict | None:
        """The next `count` episodes as one batch that owns its memory, `None` if there are not so many.

        Args:
            count: how many, at least 1.
            layout: `"padded"` is `[count, T_max]` with zeros behind the ends and `("collector", "mask")`; `"cat"` is
                `[ΣTᵢ]` without mask.

        Raises:
            ValueError: `count` below 1, or another layout.
        """
        if count < 1 or layout not in get_args(TrajFormat):
            raise ValueError(
                f"take(count={count}, layout={layout!r}): count must be 1 or more, layout 'padded' or 'cat'"
            )
        if count > len(self._complete):
            return None
        episodes = [self._complete.popleft().pieces for _ in range(count)]
        return joining.padded(episodes) if layout == "padded" else joining.flat(episodes)

    def skip(self, worker: int, below: int) -> int:
        """Frames of a worker are missing: its episodes with ids below this one are dropped, also what comes of them.

        Of ids that others have given nothing is said.

        Returns:
            How many frames of them were here.
        """
        maker = maker_of(below)
        self._floors[maker] = max(below, self._floors.get(maker, below))
        broken = [row for row, held in self._open.items() if row[::2] == (worker, maker) and held.trajectory < below]
        return sum(frames_of(self._open.pop(row).pieces) for row in broken)

    def drop_open(self, worker: int | None = None, rows: Collection[int] | None = None) -> int:
        """Forget the episodes without an end.

        Args:
            worker: only those of this worker.
            rows: only those of these rows of its flattened `*B`.

        Returns:
            How many frames that were.
        """
        keys = [key for key in self._open if _is_among(key, worker, rows)]
        return sum(frames_of(self._open.pop(key).pieces) for key in keys)

    def drop_all(self, worker: int | None = None, rows: Collection[int] | None = None) -> int:
        """Forget everything, complete episodes too, as `drop_open`; returns how many frames that were."""
        kept: deque[_Complete] = deque()
        frames = self.drop_open(worker, rows)
        for one in self._complete:
            if _is_among(one.row, worker, rows):
                frames += frames_of(one.pieces)
            else:
                kept.append(one)
        self._complete = kept
        return frames

    def _extend(self, worker: int, fragment: TensorDictBase, complete: list[_Complete]) -> int:
        source, dropped = Source(fragment), 0
        for segment in segments(fragment):
            maker = maker_of(segment.trajectory)
            if segment.trajectory < self._floors.get(maker, 0):
                dropped += segment.stop - segment.start
                continue
            key = (worker, segment.row, maker)
            held = self._open.get(key)
            if held is None or held.trajectory != segment.trajectory:
                dropped += 0 if held is None else frames_of(held.pieces)
                held = self._open[key] = _Open(segment.trajectory)
            held.pieces.append(Piece(source, segment.row, segment.start, segment.stop))
            if segment.complete:
                complete.append(_Complete(segment.stop, key, segment.trajectory, self._open.pop(key).pieces))
        return dropped


def segments(fragment: TensorDictBase) -> Iterator[Segment]:
    """The stretches of one trajectory in a fragment `[*B, T]`, row by row, without masked frames."""
    done = per_frame(fragment, (NEXT, DONE))
    ids, mask = per_frame_or_none(fragment, TRAJ_IDS), per_frame_or_none(fragment, MASK)
    lasts = (done | run_ends(done, ids, mask)).reshape(-1).nonzero().squeeze(-1)

    def at_lasts(entry: Tensor | None, default: int) -> list[Any]:
        return [default] * len(lasts) if entry is None else entry.reshape(-1)[lasts].tolist()

    start, length = 0, fragment.batch_size[-1]
    columns = (lasts.tolist(), at_lasts(ids, 0), at_lasts(done, 0), at_lasts(mask, 1))
    for last, trajectory, complete, valid in zip(*columns, strict=True):
        if valid:
            yield Segment(last // length, start % length, last % length + 1, trajectory, bool(complete))
        start = last + 1


def _is_among(row: Row, worker: int | None, rows: Collection[int] | None) -> bool:
    return (worker is None or row[0] == worker) and (rows is None or row[1] in rows)
