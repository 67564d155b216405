"""How weights get to workers: the newest is put where all can read it, and rides along with the next request.

    publish(snapshots) ──share──▶ the newest, for whom ──update_for(life)──▶ Update ──▶ an argument of the next request

A register, not a queue: slow readers skip versions. Publishing waits for no worker. What takes another's place is held
no longer, and its memory goes when the requests that name it are answered.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

Models: TypeAlias = Mapping[str, Any]
"""Snapshots by model id, or whatever else the workers of a service take; `None` for a model without weights."""

Life: TypeAlias = tuple[int, int]
"""Which worker, and which of its lives."""


@dataclass(frozen=True)
class Update:
    """What a request brings a worker that runs older weights; travels as one of its arguments.

    Attributes:
        version: what the worker runs when it has applied this.
        models: shared snapshots by model id; none if only the version has changed.
    """

    version: int
    models: Mapping[str, Any]

    def opened(self) -> dict[str, Any]:
        """The snapshots, to be read while the request is answered."""
        return {model_id: shared.open() for model_id, shared in self.models.items()}


class _Mark(NamedTuple):
    """One publication: marks are ordered by a serial number that only grows; versions may be set back."""

    serial: int
    version: int


class Channel:
    """Versioned weights for the workers of one service. Any thread may use it.

    Args:
        share: puts a value where all workers can read it; what that gives has a method `open`, and the memory goes when
            nobody holds it any more.
    """

    def __init__(self, share: Callable[[Any], Any]) -> None:
        self._share = share
        self._lock = threading.RLock()  # not held while something is copied
        self._newest = _Mark(0, 0)
        self._marks: dict[int | None, _Mark] = {None: self._newest}  # here and below `None` is for all workers
        self._entries: dict[int | None, dict[str, tuple[int, Any]]] = {None: {}}  # serial numbers, and what is shared
        self._built_with: dict[int, int] = {}
        self._sent: dict[int, tuple[int, _Mark]] = {}  # the newest that a worker was sent, and in which life

    @property
    def version(self) -> int:
        """The newest that was published; 0 is the state at construction."""
        return self._newest.version

    def publish(self, models: Models, workers: Collection[int] | None = None, version: int | None = None) -> int:
        """Make these the newest weights of all workers or of some; others keep theirs and their version.

        Blocks while the values are copied to where workers can read them. What goes wrong there leaves channel and
        version as they were.

        Args:
            models: by id; models not named keep their weights. With none at all only the version changes.
            workers: indices; `None` for all, also for those to come.
            version: the number that this gets, as after `load_state_dict`; the next one by default.

        Returns:
            The version.
        """
        return self.publish_each(dict.fromkeys((None,) if workers is None else workers, models), version)

    def publish_each(self, models: Mapping[int | None, Models], version: int | None = None) -> int:
        """As `publish`, to some workers, each its own, and to all others what is under `None`, as one version."""
        given = {who: {name: one for name, one in each.items() if one is not None} for who, each in models.items()}
        snapshots = {id(one): one for each in given.values() for one in each.values()}
        shared = {key: self._share(one) for key, one in snapshots.items()}
        with self._lock:
            serial = self._newest.serial + 1
            mark = self._newest = _Mark(serial, self.version + 1 if version is None else version)
            self.withdraw(given.get(None, {}))
            for who, each in given.items():
                self._marks[who] = mark
                entries = {name: (serial, shared[id(one)]) for name, one in each.items()}
                self._entries.setdefault(who, {}).update(entries)
            return mark.version

    def withdraw(self, model_ids: Collection[str]) -> None:
        """Send these models to nobody any more: there are no such, until they are published again."""
        with self._lock:
            for entries in self._entries.values():
                for model_id in model_ids:
                    entries.pop(model_id, None)

    @contextmanager
    def update_for(self, life: Life) -> Iterator[Update | None]:
        """What a life of a worker has not been sent yet, for a request that is sent within this context.

        `None` if it has the newest that is meant for it. Requests are sent one after another, so that none overtakes
        the one that brings the weights. After an exception inside it counts as not sent.
        """
        worker, number = life
        with self._lock:
            before = sent_life, sent = self._sent.get(worker, (number, _Mark(0, 0)))
            since = sent.serial if sent_life == number else 0
            newest = self._newest_for(worker)
            if newest.serial <= since:
                yield None
                return
            since = max(since, self._built_with.get(worker, 0))
            self._sent[worker] = number, newest
            try:
                fresh = {name: shared for name, (at, shared) in self._meant(worker).items() if at > since}
                yield Update(newest.version, fresh)
            except BaseException:
                self._sent[worker] = before
                raise

    def steady(self) -> AbstractContextManager[Any]:
        """Nothing becomes the newest meanwhile, but by this thread: requests sent within bring the same weights.

        Whoever publishes waits for the end of it; it must be short.
        """
        return self._lock

    def version_of(self, worker: int) -> int:
        """What the worker runs when it has answered all it was sent; 0 before it was sent any."""
        return self._sent[worker][1].version if worker in self._sent else 0

    def version_for(self, worker: int) -> int:
        """The newest that is meant for the worker."""
        with self._lock:
            return self._newest_for(worker).version

    def newest(self, worker: int | None, model_id: str, seen: int = 0) -> tuple[int, Any] | None:
        """What was published last of a model for a worker, or for all: its serial number, and a copy.

        `None` if there is nothing, or nothing later than `seen`.
        """
        with self._lock:
            serial, shared = self._meant(worker).get(model_id, (0, None))
        return (serial, copy.deepcopy(shared.open())) if shared is not None and serial > seen else None

    def keeps_own(self, worker: int) -> None:
        """A worker was added whose lives are built with weights of its own, which stay until the next publication."""
        with self._lock:
            self._built_with[worker] = self._newest.serial

    def left(self, worker: int) -> None:
        """A worker is gone for good."""
        with self._lock:
            self._entries.pop(worker, None)
            self._sent.pop(worker, None)

    def _newest_for(self, worker: int) -> _Mark:
        return max(self._marks[None], self._marks.get(worker, self._marks[None]))

    def _meant(self, worker: int | None) -> dict[str, tuple[int, Any]]:
        return {**self._entries[None], **self._entries.get(worker, {})}
