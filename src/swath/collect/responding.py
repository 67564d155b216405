"""What a collection asks of whatever makes its fragments elsewhere.

    describe()                   ─▶ Description
    collect(update, ask)         ─▶ weights, if newer ─▶ fragment ─▶ Parcel(Head, arrays) | Broken
                                                              └────▶ written ─▶ Parcel(Head, None)
    control(update, method, …)   ─▶ weights, if newer ─▶ one of its methods
    close()

Behind it is one worker core, or a whole collector. Runs in the worker, in one thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from swath.collect.asks import Ask, Broken, Head
from swath.collect.description import Description
from swath.collect.worker import Tally
from swath.collect.writing import ReplayWriter
from swath.errors import Closed, FleetFailed
from swath.weights.channel import Update
from swath.weights.snapshot import Snapshot
from swath.workers.outcome import frozen
from swath.workers.packing import Parcel

BEGINNING_ANEW = ("reset", "seed_with", "set_seed", "restore", "load_state_dict", "move_to")
"""Control calls after which episodes begin anew: what waits to be written is dropped then."""


class Responder(ABC):
    """Answers a collection. What goes wrong over here is an answer, too."""

    def __init__(self) -> None:
        super().__init__()
        self._unfit: Exception | None = None
        self._sent = 0
        self._since = self._gap = 0
        self._writer: ReplayWriter | None = None

    @abstractmethod
    def describe(self) -> Description:
        """What its fragments and weights are like."""

    @abstractmethod
    def close(self) -> None:
        """Close the envs."""

    @abstractmethod
    def _make(self, ask: Ask) -> Parcel:
        """Make one fragment."""

    @abstractmethod
    def _tally(self) -> Tally:
        """What went wrong in this life so far; its own object."""

    @abstractmethod
    def _bring(self, models: Mapping[str, Snapshot], version: int) -> None:
        """Copy weights into the models, into all of them or none, and run this version."""

    def collect(self, update: Update | None, ask: Ask) -> Parcel | Broken:
        """Make one fragment."""
        if self._cannot_take(update):
            return self._refusal()
        before = self._tally()
        try:
            return self._made(ask)
        except Exception as error:  # noqa: BLE001  travels, and is raised over there
            after = self._tally()
            unfit = isinstance(error, FleetFailed | Closed)
            return Broken(frozen(error, one_note=True), after, self._is_by_env(before, after), unfit)

    def control(
        self, update: Update | None, method: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a method of this worker between two fragments; `Broken` is the answer of a worker that is unfit."""
        if self._cannot_take(update):
            return self._refusal()
        if self._writer is not None and method in BEGINNING_ANEW:
            self._writer.drop()
        return getattr(self, method)(*args, **(kwargs or {}))

    def conform(self, model: Description) -> None:
        """Be unfit unless it is like others."""
        difference = model.difference(self.describe())
        if difference:
            self._unfit = ValueError(f"its fragments cannot be joined with those of others: {difference}")

    def shutdown(self) -> None:
        """Close the envs."""
        self.close()

    def _made(self, ask: Ask) -> Parcel:
        """A fragment, which is written if that is to be done from here.

        Its head says whether some of what came before it was given to others, and what was sent before it: a reply may
        find nobody who has asked for it.
        """
        parcel = self._make(ask)
        made: Head = parcel.head
        self._sent += made.frames
        head = replace(made, gap=self._gap, sent=self._sent, since=self._since)
        self._gap, self._since = 0, made.next_id
        if self._writer is None:
            return Parcel(head, parcel.body)
        return Parcel(replace(head, written=self._writer.write(head, parcel.body)), None)

    def _is_by_env(self, before: Tally, after: Tally) -> bool:
        """Whether an env has raised what no fragment was made for."""
        return after.env_errors > before.env_errors

    def _cannot_take(self, update: Update | None) -> bool:
        """Bring the models to the versions of an update; true if they are not what they should be."""
        if update is not None and self._unfit is None:
            try:
                self._bring({model_id: shared.open() for model_id, shared in update.models.items()}, update.version)
            except Exception as error:  # noqa: BLE001  it travels with the refusal
                self._unfit = error
        return self._unfit is not None

    def _refusal(self) -> Broken:
        assert self._unfit is not None
        return Broken(frozen(self._unfit), self._tally(), unfit=True)
