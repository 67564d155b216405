"""How a worker writes what it makes to a replay buffer, through a client of its own.

fragment ─▶ post-processed ─▶ extend ─▶ Written
fragment ─▶ episodes ─▶ those that are complete, post-processed ─▶ extend ─▶ Written
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from swath.collectors.delivery import Delivery, Part, WholeEpisodes
from swath.collectors.messages import Head, Written
from swath.collectors.options import Hooks, Trajectories
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
        cut: leave out the steps of a fragment that were not made.
    """

    client: Any
    trajectories: Trajectories
    keep_ids: bool = True
    cut: bool = False


class ReplayWriter:
    """Writes the fragments of one worker. Lives in the worker, for its one thread.

    Args:
        request: with what.
        layout: names and extras of its fragments.
        hooks: the user's functions that are called with what is written.
        device: where batches live; `None` leaves them without a device.
        where: which worker this is, for notes.
    """

    def __init__(self, request: WriteRequest, layout: Layout, hooks: Hooks, device: Any, where: str) -> None:
        wanted, self._asked, self._device, self._counters = request.trajectories, request, device, Counters()
        of_its_own = request.keep_ids, request.client, f" in {where}"
        # Whoever asks a worker sees to it that nobody does after shutdown.
        self.delivery = Delivery(layout, wanted, hooks, self._counters, lambda: None, *of_its_own)
        whole = wanted.per_batch is not None
        self._whole = WholeEpisodes(wanted, Counters(), writing=True) if whole else None

    def write(self, head: Head, body: Any) -> Written:
        """Write a fragment, or a batch that was made of one; or add it to the episodes and write what is complete.

        Returns:
            What was written; also if a function of the user's or the buffer has raised.
        """
        before, times = self._counters.frames, 0
        episodes: list[EpisodeArray] = []
        error = b""
        try:
            for part in self._parts(head, body):
                self.delivery.deliver([part])
                times += 1
                episodes.append(part.episodes)
        except Exception as raised:  # noqa: BLE001  it travels, and is raised over there
            error = frozen(raised, one_note=True)
        waiting = 0 if self._whole is None else self._whole.frames
        return Written(self._counters.frames - before, times, waiting, joined(episodes).tobytes(), error)

    def drop(self) -> None:
        """Forget what waits for the end of its episode or for the next write."""
        if self._whole is not None:
            self._whole.drop()

    def _parts(self, head: Head, body: Any) -> Iterator[Part]:
        """What is written at a time."""
        layout = self.delivery.layout
        batch = body.to_tensordict(layout) if isinstance(body, Fragment) else body
        if head.steps < batch.shape[-1] and not layout.masked:
            return  # a shutdown has ended the fragment
        batch = batch if self._device is None else batch.to(self._device)
        made = Part(batch[..., : head.steps] if self._asked.cut else batch, head.episodes)
        if self._whole is None:
            yield made
            return
        self._whole.add([(0, head, made)])
        while (part := self._whole.take()) is not None:
            yield part


def client_of(buffer: Any) -> Any:
    """A client of a replay buffer; `None` if it has none, or is its own, which only its own process can write to.

    Raises:
        TypeError: it cannot be extended.
    """
    client = buffer.client() if callable(getattr(buffer, "client", None)) else None
    if client is buffer or client is None:
        return None
    if not callable(getattr(client, "extend", None)):
        raise TypeError(f"client() of the replay buffer gave {type(client).__name__} without extend()")
    return client
