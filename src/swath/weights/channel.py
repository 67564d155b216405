"""Versioned weights for the workers of a service: shared once, and brought by the next request to each worker.

    publish(snapshots) ──share──▶ the newest ──update_for(life)──▶ Update ──▶ an argument of the next request

A register, not a queue: slow workers skip versions. Publishing waits for no worker. A replaced snapshot is released
when the requests that refer to it are answered.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

Models: TypeAlias = Mapping[str, Any]
"""Snapshots, or other values that the workers of a service take, by model id; `None` for a model without weights."""

Life: TypeAlias = tuple[int, int]
"""The index of a worker and the number of its life."""


@dataclass(frozen=True)
class Update:
    """Newer weights for a worker; an argument of a request.

    Attributes:
        version: version of the worker's weights after the update.
        models: shared snapshots by model id; empty if only the version has changed.
    """

    version: int
    models: Mapping[str, Any]

    def opened(self) -> dict[str, Any]:
        """Return the snapshots, to be read while the request is answered."""
        return {model_id: shared.open() for model_id, shared in self.models.items()}


class _Publication(NamedTuple):
    """One publication. Its serial number only grows; its version may be set back."""

    serial: int
    version: int


class Channel:
    """Versioned weights for the workers of one service. Any thread may use it.

    Args:
        share: puts a value where all workers can read it, and returns an object with a method `open`; the memory is
            released with that object.
    """

    def __init__(self, share: Callable[[Any], Any]) -> None:
        self._share = share
        self._lock = threading.RLock()  # not held while something is copied
        self._newest = _Publication(0, 0)
        # by worker, `None` for all: the newest publication, and for each model a serial number and the shared value
        self._publications: dict[int | None, _Publication] = {None: self._newest}
        self._entries: dict[int | None, dict[str, tuple[int, Any]]] = {None: {}}
        self._built_at: dict[int, int] = {}  # serial numbers, of workers that keep the weights they were built with
        self._sent: dict[int, tuple[int, _Publication]] = {}  # by worker: the life, and its newest publication

    @property
    def version(self) -> int:
        """Return the newest version; 0 is the state at construction."""
        return self._newest.version

    def publish(self, models: Models, workers: Collection[int] | None = None, version: int | None = None) -> int:
        """Publish weights for all workers or for some, and return the version; others keep theirs.

        Blocks while the values are copied to where workers can read them. An error there leaves channel and version
        unchanged.

        Args:
            models: weights by id; other models keep their weights. Without any, only the version changes.
            workers: indices; `None` for all workers, present and later.
            version: number of the version, as after `load_state_dict`; the next one by default.
        """
        return self.publish_each(dict.fromkeys((None,) if workers is None else workers, models), version)

    def publish_each(self, models: Mapping[int | None, Models], version: int | None = None) -> int:
        """Publish weights by worker, and under `None` those for all other workers, as one version; see `publish`."""
        snapshots = {id(value): value for own_models in models.values() for value in own_models.values()}
        shared = {key: self._share(value) for key, value in snapshots.items() if value is not None}
        with self._lock:
            serial = self._newest.serial + 1
            self._newest = _Publication(serial, self.version + 1 if version is None else version)
            self.withdraw([model_id for model_id, value in models.get(None, {}).items() if value is not None])
            for worker, own_models in models.items():
                self._publications[worker] = self._newest
                entries = self._entries.setdefault(worker, {})
                entries |= {
                    name: (serial, shared[id(value)]) for name, value in own_models.items() if value is not None
                }
            return self._newest.version

    def withdraw(self, model_ids: Collection[str]) -> None:
        """Stop sending these models until they are published again."""
        with self._lock:
            for entries in self._entries.values():
                for model_id in model_ids:
                    entries.pop(model_id, None)

    @contextmanager
    def update_for(self, life: Life) -> Iterator[Update | None]:
        """Yield the weights that a life was not sent yet, for a request that is sent within this context.

        `None` if it has the newest ones. Requests to a worker are sent one after another, so that none overtakes the
        one with the weights. After an exception in the context the weights count as not sent.
        """
        worker, number = life
        with self._lock:
            before = sent_life, sent = self._sent.get(worker, (number, _Publication(0, 0)))
            since = sent.serial if sent_life == number else 0
            newest = self._newest_for(worker)
            if newest.serial <= since:
                yield None
                return
            since = max(since, self._built_at.get(worker, 0))
            self._sent[worker] = number, newest
            entries = self._entries_for(worker)
            try:
                yield Update(newest.version, {name: shared for name, (at, shared) in entries.items() if at > since})
            except BaseException:
                self._sent[worker] = before
                raise

    def hold_newest(self) -> AbstractContextManager[Any]:
        """Keep other threads from publishing within the context, which must be short: its requests get one version."""
        return self._lock

    def sent_version(self, worker: int) -> int:
        """Return the version of a worker that has answered all its requests; 0 before it was sent any."""
        return self._sent[worker][1].version if worker in self._sent else 0

    def newest_version(self, worker: int) -> int:
        """Return the newest version for the worker."""
        with self._lock:
            return self._newest_for(worker).version

    def newest(self, worker: int | None, model_id: str, after: int = 0) -> tuple[int, Any] | None:
        """Return the serial number and a copy of the newest weights of a model, for a worker or for all.

        `None` if there are none with a serial number above `after`.
        """
        with self._lock:
            serial, shared = self._entries_for(worker).get(model_id, (0, None))
        return (serial, copy.deepcopy(shared.open())) if shared is not None and serial > after else None

    def keep_built_weights(self, worker: int) -> None:
        """Keep the weights that an added worker's lives are built with, until the next publication."""
        with self._lock:
            self._built_at[worker] = self._newest.serial

    def forget(self, worker: int) -> None:
        """Release the weights of a worker that was removed."""
        with self._lock:
            self._entries.pop(worker, None)
            self._sent.pop(worker, None)

    def _newest_for(self, worker: int) -> _Publication:
        common = self._publications[None]
        return max(common, self._publications.get(worker, common))

    def _entries_for(self, worker: int | None) -> dict[str, tuple[int, Any]]:
        return {**self._entries[None], **self._entries.get(worker, {})}
