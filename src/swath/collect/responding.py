"""What a collection asks of whatever makes its fragments elsewhere.

    describe()       ─▶ Description
    collect(ask)     ─▶ fragment ─▶ Parcel(Head, arrays) | Broken
                              └────▶ written ─▶ Parcel(Head, None)
    other methods    between two fragments
    close()

Behind it is one worker core, or a whole collector. Runs in the worker, in one thread.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from swath.collect.asks import Ask, Broken, Head
from swath.collect.description import Description
from swath.collect.worker import Tally
from swath.collect.writing import ReplayWriter
from swath.errors import Closed, FleetFailed
from swath.group.member import Member
from swath.weights.channel import Update
from swath.workers.outcome import frozen
from swath.workers.packing import Parcel

BEGINNING_ANEW = ("reset", "seed_with", "set_seed", "restore", "load_state_dict", "move_to")
"""Control calls after which episodes begin anew: what waits to be written is dropped then."""


class Responder(Member):
    """Answers a collection. What goes wrong over here is an answer, too."""

    def __init__(self) -> None:
        super().__init__()
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

    @property
    @abstractmethod
    def _env_errors(self) -> int:
        """How often envs have raised what its worker is replaced for, if that is to be done."""

    @abstractmethod
    def _tally(self) -> Tally:
        """What went wrong in this life so far; its own object."""

    def answer(self, update: Update | None, method: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
        """Take newer weights, and call a method; what waits to be written is dropped where episodes begin anew."""
        if self._writer is not None and method in BEGINNING_ANEW:
            self._writer.drop()
        reply = super().answer(update, method, args, kwargs)
        if isinstance(reply, Broken) and isinstance(reply.error, Exception):
            return replace(reply, error=frozen(reply.error, one_note=True))
        return reply

    def collect(self, ask: Ask) -> Parcel | Broken:
        """Make one fragment."""
        before = self._env_errors
        try:
            return self._made(ask)
        except Exception as error:  # noqa: BLE001  it is an answer, and is raised by who asked
            unfit = isinstance(error, FleetFailed | Closed)
            return Broken(error, self._tally(), self._env_errors > before, unfit)

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
        head: Head = parcel.head
        self._sent += head.frames
        head.gap, head.sent, head.since = self._gap, self._sent, self._since
        self._gap, self._since = 0, head.next_id
        if self._writer is None:
            return parcel
        head.written = self._writer.write(head, parcel.body)
        return Parcel(head, None)
