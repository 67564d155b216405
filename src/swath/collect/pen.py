"""How a worker writes for itself: it keeps what it has made until it is told to write it to its own client.

fragment ─▶ post-processed ─▶ kept ─(write)─▶ extend ─▶ Written
fragment ─▶ kept ─(write)─▶ episodes ─▶ those that are complete, post-processed ─▶ extend ─▶ Written
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from swath.collect.asks import Head, Kept, Written
from swath.collect.clients import PenRequest
from swath.collect.counters import Counters
from swath.collect.notes import noted
from swath.collect.part import Part
from swath.collect.shaping import Shaper, moved_for, valid_frames
from swath.collect.whole import WholeEpisodes
from swath.options import Hooks
from swath.rollout.fragment import Fragment, Layout
from swath.workers.outcome import frozen


class _Made(NamedTuple):
    """A fragment as it is to be written."""

    head: Head
    batch: Any


class Pen:
    """Writes the fragments of one worker. Lives in the worker, for its one thread.

    Args:
        request: with what.
        layout: names and extras of its fragments.
        hooks: the user's functions that are called with what is written.
    """

    def __init__(self, request: PenRequest, layout: Layout, hooks: Hooks) -> None:
        wanted = request.trajectories
        self.shaper = Shaper(layout, wanted, hooks, request.device, keep_ids=request.keep_ids)
        self._client = request.client
        self._cut = request.cut
        self._kept: dict[int, _Made] = {}
        self._last: Head | None = None
        self._since = 0
        whole = wanted.per_batch is not None
        self._whole = WholeEpisodes(wanted, Counters(), writing=True, polls=None) if whole else None

    def sort_out(self, kept: Kept) -> None:
        """Let go of what is not wanted any more."""
        for number in [number for number in self._kept if number not in kept.numbers]:
            self._skip(self._kept.pop(number).head)
        if kept.since > self._since:
            self._since = kept.since
            if self._whole is not None:
                self._whole.drop()
            self._skip(self._last)

    def keep(self, number: int, head: Head, body: Any) -> None:
        """Keep a fragment, or a batch that was made of one, until it is to be written.

        Raises:
            Exception: what a function of the user's raised.
        """
        batch = self.shaper.plain(body) if isinstance(body, Fragment) else self.shaper.placed(body)
        if self._cut:
            batch = batch[..., : head.steps]
        self._kept[number] = _Made(head, batch if self._whole is not None else self.shaper.finish(batch))
        self._last = head

    def write(self, number: int | None) -> Written:
        """Write a fragment that was kept, or add it to the episodes and write those that are complete.

        Args:
            number: of the request; `None` for further episodes alone.

        Returns:
            What was written; with what a function of the user's or the buffer raised, if anything.
        """
        made = None if number is None else self._kept.pop(number)
        if self._whole is not None:
            return self._episodes(self._whole, made)
        assert made is not None, "only episodes are written without a fragment"
        return self._written(Part(made.batch, made.head.episodes), made.head.frames)

    def _episodes(self, whole: WholeEpisodes, made: _Made | None) -> Written:
        if made is not None:
            for floor in made.head.gap:
                whole.skip(0, floor)
            whole.add({0: Part(made.batch, made.head.episodes)})
        part = whole.take()
        written = Written(0) if part is None else self._written(part, valid_frames(part.batch))
        return replace(written, waiting=whole.frames, complete=whole.ready)

    def _written(self, part: Part, frames: int) -> Written:
        try:
            finished = part.batch if self._whole is None else self.shaper.finish(part.batch)
            with noted(f"extend() of the replay buffer in {self._who}"):
                self._client.extend(moved_for(self._client, finished))
        except Exception as error:  # noqa: BLE001  it travels, and is raised over there
            return Written(0, error=frozen(error, one_note=True))
        return Written(frames, episodes=part.episodes)

    @property
    def _who(self) -> str:
        assert self._last is not None
        return f"worker {self._last.worker} (life {self._last.life})"

    def _skip(self, head: Head | None) -> None:
        """Frames are missing: what began before its end of them is not whole."""
        if self._whole is not None and head is not None:
            for floor in head.floors:
                self._whole.skip(0, floor)
