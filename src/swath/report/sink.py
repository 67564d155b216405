"""Where the numbers of a run go: the protocol, and one sink made of several."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Sink(Protocol):
    """Takes the metrics of a run, one call per moment, with growing frame counts."""

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of the moment when `frames` frames had been collected."""

    def close(self) -> None:
        """Write what is still held back; closing twice is fine."""


class SinkGroup:
    """A sink that hands everything on to others, in order."""

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self._sinks = tuple(sinks)

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics in every sink."""
        for sink in self._sinks:
            sink.log(frames, metrics)

    def close(self) -> None:
        """Close every sink, also when one of them raises."""
        with ExitStack() as stack:
            for sink in self._sinks:
                stack.callback(sink.close)


def numbers_of(facts: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the facts of `stats()`, for a sink. True and false become 1 and 0, words are left out."""
    return {name: value + 0 for name, value in facts.items() if isinstance(value, int | float)}
