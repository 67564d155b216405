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

    @abstractmethod
    def _tally(self) -> Tally:
        """What went wrong in this life so far; its own object."""

    def answer(self, update: Update | None, method: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
        """Take newer weights, and call a method; what waits to be written is dropped where episodes begin anew."""
        if self._writer is not None and method in BEGINNING_ANEW:
            self._writer.drop()
        return super().answer(update, method, args, kwargs)

    def collect(self, ask: Ask) -> Parcel | Broken:
        """Make one fragment."""
        before = self._tally()
        try:
            return self._made(ask)
        except Exception as error:  # noqa: BLE001  travels, and is raised over there
            after = self._tally()
            unfit = isinstance(error, FleetFailed | Closed)
            return Broken(frozen(error, one_note=True), after, self._is_by_env(before, after), unfit)

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
