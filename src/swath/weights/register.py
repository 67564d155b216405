"""Which weights are the newest for whom, and who was sent which. Pure: no locks, no copies; the channel has those."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

Life: TypeAlias = tuple[int, int]
"""Which worker, and which of its lives."""

Item = TypeVar("Item")


class Mark(NamedTuple):
    """One publication.

    Attributes:
        serial: only grows; marks are ordered by it.
        version: its number for users, which may be set back.
    """

    serial: int
    version: int


class Sent(NamedTuple):
    """The newest that a worker was sent.

    Attributes:
        life: to which of its lives.
        mark: which publication.
    """

    life: int
    mark: Mark


class _Entry(NamedTuple):
    serial: int
    item: Any


class Register(Generic[Item]):
    """The newest item of each model, for all workers and for single ones."""

    def __init__(self) -> None:
        self.mark = Mark(0, 0)
        self._mark_of_all = self.mark
        self._marks: dict[int, Mark] = {}
        self._of_all: dict[str, _Entry] = {}
        self._own: dict[int, dict[str, _Entry]] = {}
        self._since: dict[int, int] = {}
        self._sent: dict[int, Sent] = {}

    def put(self, models: Mapping[str, Item], version: int | None = None) -> Mark:
        """Items for all workers, also those to come. The version is the next one unless it is given."""
        mark = self._mark_of_all = self._next(version)
        for model_id, item in models.items():
            self._of_all[model_id] = _Entry(mark.serial, item)
            for own in self._own.values():
                own.pop(model_id, None)
        return mark

    def put_each(self, models: Mapping[int, Mapping[str, Item]], version: int | None = None) -> Mark:
        """Items for some workers, each its own; the others keep what they have, and their version."""
        mark = self._next(version)
        for worker, own in models.items():
            self._marks[worker] = mark
            entries = self._own.setdefault(worker, {})
            entries.update({model_id: _Entry(mark.serial, item) for model_id, item in own.items()})
        return mark

    def withdraw(self, model_ids: Collection[str]) -> None:
        """These models are sent to nobody any more."""
        for entries in (self._of_all, *self._own.values()):
            for model_id in model_ids:
                entries.pop(model_id, None)

    def newest(self, worker: int) -> Mark:
        """The last publication that was meant for the worker."""
        return max(self._mark_of_all, self._marks.get(worker, self._mark_of_all))

    def meant(self, worker: int, since: int = 0) -> dict[str, Item]:
        """The newest items for the worker, of those put after a serial number."""
        entries = {**self._of_all, **self._own.get(worker, {})}
        return {model_id: entry.item for model_id, entry in entries.items() if entry.serial > since}

    def due(self, life: Life) -> tuple[Mark, dict[str, Item]] | None:
        """What this life has not been sent yet; it is from now on sent."""
        worker, number = life
        sent, newest = self._sent.get(worker), self.newest(worker)
        since = sent.mark.serial if sent and sent.life == number else 0
        if newest.serial <= since:
            return None
        self._sent[worker] = Sent(number, newest)
        return newest, self.meant(worker, max(since, self._since.get(worker, 0)))

    def sent(self, worker: int) -> Sent | None:
        """The newest that the worker was sent; `None` before it was sent any."""
        return self._sent.get(worker)

    def resend(self, worker: int, sent: Sent | None = None) -> None:
        """The worker has got no more than this."""
        self._sent.pop(worker, None)
        if sent is not None:
            self._sent[worker] = sent

    def joined(self, worker: int, *, own_weights: bool) -> None:
        """A worker was added; with weights of its own it keeps them until the next publication, in all its lives."""
        self.resend(worker)
        self._since[worker] = self.mark.serial if own_weights else 0

    def left(self, worker: int) -> None:
        """A worker is gone for good."""
        self._own.pop(worker, None)

    def items(self) -> Iterator[Item]:
        """All that somebody may still be sent."""
        for entries in (self._of_all, *self._own.values()):
            for entry in entries.values():
                yield entry.item

    def _next(self, version: int | None) -> Mark:
        self.mark = Mark(self.mark.serial + 1, self.mark.version + 1 if version is None else version)
        return self.mark
