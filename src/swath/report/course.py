"""How a number went in the course of a run of any length, in little room."""

from __future__ import annotations

from math import isfinite

from swath.report.text import sparkline

MOST = 1024
"""So many means are kept; an even number."""


class Course:
    """The finite values of a number, one after another; when there are many, means of as many neighbours each."""

    def __init__(self) -> None:
        self._means: list[float] = []
        self._each = 1
        self._latest: list[float] = []

    def add(self, value: float) -> None:
        """The next value."""
        if not isfinite(value):
            return
        self._latest.append(value)
        if len(self._latest) == self._each:
            self._means.append(_mean(self._latest))
            self._latest = []
        if len(self._means) == MOST:
            self._means = [_mean(self._means[i : i + 2]) for i in range(0, MOST, 2)]
            self._each *= 2

    def bars(self, width: int) -> str:
        """Its course in at most `width` bars; see `sparkline`."""
        return sparkline(self._means, width)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
