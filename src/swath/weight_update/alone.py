"""Where the weights of a sender go beside the workers of a collector: to its own channel, and to actors directly."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from swath.options import count
from swath.weight_update.deliveries import Deliveries, Stored
from swath.weight_update.mail import EVERYONE, Address, OwnChannel, Post
from swath.weights.manifest import Manifest
from swath.weights.snapshot import Snapshot, copied


class Alone:
    """Sends without a collector. Any thread may use it; one sends after the other.

    Args:
        make: begins a channel.
        actors: handles of Ray actors, by worker.
    """

    def __init__(self, make: Callable[[], OwnChannel], actors: Sequence[Any] = ()) -> None:
        self._make = make
        self.actors = actors
        self._channel: OwnChannel | None = None
        self._deliveries = Deliveries()
        self._lock = threading.RLock()

    @property
    def is_read(self) -> bool:
        """Whether there is a channel."""
        return self._channel is not None

    @property
    def address(self) -> Address | None:
        """Of the channel; `None` if there is none."""
        return None if self._channel is None else self._channel.address

    def open(self, newest: Callable[[], Post]) -> None:
        """Begin the channel with what was published last, unless there is one."""
        with self._lock:
            if self._channel is None:
                self._channel = self._make()
                post = newest()
                if post:
                    self._channel.put(post)

    def send(self, given: Mapping[int, Any], model: Any) -> None:
        """Send weights by worker, or for `EVERYONE`.

        Args:
            given: modules, TensorDicts or dicts.
            model: the module whose names they must have; `None` if nobody knows.

        Raises:
            TypeError, KeyError, ValueError: they do not fit; nothing is sent.
            Exception: what an earlier delivery to an actor failed with.
        """
        with self._lock:
            self._deliveries.raise_failed()
            post = {who: _taken(weights, model) for who, weights in given.items()}
            for who, weights in given.items() if self.actors else ():
                self._deliveries.send(self._addressed(who), Stored(weights))
            if not self.actors:
                self.open(dict)
            self.publish(post)

    def publish(self, post: Post) -> None:
        """Put snapshots into the channel, if there is one."""
        with self._lock:
            if self._channel is not None:
                self._channel.put(post)

    def newest(self, worker: int) -> Snapshot | None:
        """What was sent last to a worker; `None` if nothing was."""
        if self._channel is None:
            return None
        reader = self._channel.address.reader()
        letter = reader.newest(worker, 0, 0.0)
        reader.close()
        return None if letter is None else letter.snapshot

    def close(self) -> None:
        """End the channel."""
        with self._lock:
            if self._channel is not None:
                self._channel.close()

    def _addressed(self, who: int) -> Sequence[Any]:
        if who == EVERYONE:
            return self.actors
        if who >= len(self.actors):
            raise ValueError(f"worker_ids={who}: there is no such worker; there are {len(self.actors)}")
        return [self.actors[who]]


def readers(worker_ids: Any) -> list[int]:
    """Whom weights are for; `EVERYONE` where nobody is named.

    Raises:
        ValueError: not indices.
    """
    if worker_ids is None:
        return [EVERYONE]
    wanted: Iterable[Any] = worker_ids if isinstance(worker_ids, list | tuple) else [worker_ids]
    return [count("worker_ids", worker, least=0) for worker in wanted]


def _taken(weights: Any, model: Any) -> Snapshot:
    manifest = Manifest.of(model) if isinstance(model, nn.Module) else Manifest.of_weights(weights)
    return copied(manifest.fitted(weights), manifest)
