"""What lives in a worker and answers the requests of a group: newer weights first, then the method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swath.weights.channel import Update
from swath.workers.outcome import frozen


@dataclass(frozen=True)
class Unfit:
    """The answer of a member that is not what it should be, whatever it is asked: it has to be replaced.

    Attributes:
        error: why, as `outcome.frozen` wrote it.
    """

    error: bytes


class Member(ABC):
    """Answers requests, one after another, in one thread."""

    _unfit: Exception | None = None

    @abstractmethod
    def take(self, models: Mapping[str, Any], version: int) -> None:
        """Copy weights into the models, into all of them or none, and run this version."""

    def answer(self, update: Update | None, method: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
        """Take newer weights, if they come with the request, and call a method; `Unfit` if they do not fit."""
        if update is not None and self._unfit is None:
            try:
                self.take(update.opened(), update.version)
            except Exception as error:  # noqa: BLE001  it travels with the answer
                self._unfit = error
        if self._unfit is not None:
            return Unfit(frozen(self._unfit))
        return getattr(self, method)(*args, **(kwargs or {}))
