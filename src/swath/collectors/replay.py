"""How a worker writes what it makes to a replay buffer, through a client of its own.

fragment ─▶ post-processed ─▶ extend ─▶ Written
fragment ─▶ episodes ─▶ those that are complete, post-processed ─▶ extend ─▶ Written
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from swath.collectors.delivery import Hooks, Part, Shaper, Trajectories, WholeEpisodes
from swath.collectors.messages import Head, Written
from swath.errors import noted
from swath.group.stats import Counters
from swath.rollout.episodes.statistics import EpisodeArray, joined
from swath.rollout.fragment import Fragment, Layout
from swath.workers.outcome import frozen


@dataclass(frozen=True)
class WriteRequest:
    """How a worker writes.

    Attributes:
        client: its own, of the replay buffer.
        trajectories: how batches are made of episodes.
        keep_ids: whether trajectory ids are written.
        device: where batches live; `None` leaves them without a device.
        cut: leave out the steps of a fragment that were not made.
    """

    client: Any
    trajectories: Trajectories
    keep_ids: bool = True
    device: torch.device | None = None
    cut: bool = False


class ReplayWriter:
    """Writes the fragments of one worker. Lives in the worker, for its one thread.

    Args:
        request: with what.
        layout: names and extras of its fragments.
        hooks: the user's functions that are called with what is written.
    """

    def __init__(self, request: WriteRequest, layout: Layout, hooks: Hooks) -> None:
        wanted = request.trajectories
        self.shaper = Shaper(layout, wanted, hooks, request.device, keep_ids=request.keep_ids)
        self._client, self._cut = request.client, request.cut
        whole = wanted.per_batch is not None
        self._whole = WholeEpisodes(wanted, Counters(), writing=True, polls=None) if whole else None

    def write(self, head: Head, body: Any) -> Written:
        """Write a fragment, or a batch that was made of one; or add it to the episodes and write what is complete.

        Returns:
            What was written; also if a function of the user's or the buffer has raised.
        """
        frames = times = 0
        episodes: list[EpisodeArray] = []
        error = b""
        try:
            for part in self._parts(head, body):
                finished = self.shaper.finish(part.batch)
                with noted(f"extend() of the replay buffer in worker {head.worker} (life {head.life})"):
                    self._client.extend(self.shaper.written(self._client, finished))
                frames, times = frames + part.frames, times + 1
                episodes.append(part.episodes)
        except Exception as raised:  # noqa: BLE001  it travels, and is raised over there
            error = frozen(raised, one_note=True)
        waiting = 0 if self._whole is None else self._whole.frames
        return Written(frames, times, waiting, joined(episodes).tobytes(), error)

    def drop(self) -> None:
        """Forget what waits for the end of its episode or for the next write."""
        if self._whole is not None:
            self._whole.drop()

    def _parts(self, head: Head, body: Any) -> Iterator[Part]:
        """What is written at a time."""
        batch = self.shaper.plain(body) if isinstance(body, Fragment) else self.shaper.placed(body)
        if head.steps < batch.shape[-1] and not self.shaper.layout.masked:
            return  # a shutdown has ended the fragment
        made = Part(batch[..., : head.steps] if self._cut else batch, head.episodes)
        if self._whole is None:
            yield made
            return
        self._whole.skip(0, head.gap)
        self._whole.add({0: made})
        while (part := self._whole.take()) is not None:
            yield part


@dataclass
class Writers:
    """Lets workers write for themselves.

    Attributes:
        buffer: has `client()`; each life of a worker gets one of its own.
        asked: how they write.
        unused: clients that were made.
    """

    buffer: Any
    asked: WriteRequest
    unused: list[Any] = field(default_factory=list)

    def request(self, device: torch.device | None) -> WriteRequest:
        """For one life of a worker, whose batches live there.

        Raises:
            TypeError: the client cannot be extended.
        """
        client = self.unused.pop() if self.unused else self.buffer.client()
        if not callable(getattr(client, "extend", None)):
            raise TypeError(f"client() of the replay buffer gave {type(client).__name__} without extend()")
        return replace(self.asked, client=client, device=device)


def first_client(buffer: Any) -> Any:
    """A client of a replay buffer; `None` if it has none, or is its own, which only its own process can write to."""
    client = buffer.client() if callable(getattr(buffer, "client", None)) else None
    return None if client is buffer else client
