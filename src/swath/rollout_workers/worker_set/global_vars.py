"""Global variables of a set: for all its workers, or for some; those that come later get them, too."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


class GlobalVars:
    """The newest values, by name."""

    def __init__(self) -> None:
        self._of_all: dict[str, Any] = {}
        self._own: dict[int, dict[str, Any]] = {}
        self._serial = 0
        self._serial_of_all = 0
        self._serials: dict[int, int] = {}

    def put(self, values: Mapping[str, Any], workers: Collection[int] | None = None) -> None:
        """Newer values for all workers, or for some."""
        self._serial += 1
        if workers is None:
            self._serial_of_all = self._serial
            self._of_all.update(values)
            for own in self._own.values():
                own.update(values)
        else:
            for worker in workers:
                self._serials[worker] = self._serial
                self._own.setdefault(worker, dict(self._of_all)).update(values)

    def serial(self, worker: int) -> int:
        """Grows with each change for this worker; 0 before there is any."""
        return max(self._serial_of_all, self._serials.get(worker, 0))

    def of(self, worker: int) -> dict[str, Any]:
        """Those of a worker."""
        return self._own.get(worker, self._of_all)
