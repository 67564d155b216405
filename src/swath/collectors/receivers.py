"""Schemes through which a collector takes weights from elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from swath.collectors.outlet import WeightOutlet
from swath.weight_update.scheme import WeightSyncScheme


class Receivers:
    """Receiving schemes of one collector, by model. Any thread may use it.

    Args:
        outlet: where what comes in goes on.
    """

    def __init__(self, outlet: WeightOutlet) -> None:
        self._outlet = outlet
        self._schemes: dict[str, WeightSyncScheme] = {}
        self._lock = threading.RLock()

    def __contains__(self, model_id: str) -> bool:
        return model_id in self._schemes

    def __bool__(self) -> bool:
        return bool(self._schemes)

    def register(self, schemes: Mapping[str, WeightSyncScheme], collector: Any, worker_idx: int | None) -> None:
        """Make these receivers for a collector; those that had the same models are shut down.

        Raises:
            RuntimeError: one of them is a sender in this process; nothing is registered then.
        """
        with self._lock:
            for model_id, scheme in schemes.items():
                scheme.init_on_receiver(model_id=model_id, context=collector, worker_idx=worker_idx)
                self._outlet.learn(model_id)
            replaced = [self._schemes.get(model_id) for model_id in schemes]
            self._schemes.update(schemes)
            for old in replaced:
                if old is not None and old not in self._schemes.values():
                    old.shutdown()

    def take(self) -> None:
        """Take the newest of each, as one version; without anything newer nothing happens, and nobody waits.

        What one of them raises is raised when the others are taken: they bring what is newer only once.

        Raises:
            RuntimeError: a sender cannot be reached.
            KeyError, ValueError: weights do not fit.
        """
        if not self._schemes:
            return
        with self._lock:
            with self._outlet.one_version():
                errors = [error for scheme in self._schemes.values() if (error := _error_of(scheme)) is not None]
            if errors:
                raise errors[0]

    def close(self) -> None:
        """Shut them down."""
        with self._lock:
            for scheme in self._schemes.values():
                scheme.shutdown()
            self._schemes.clear()


def _error_of(scheme: WeightSyncScheme) -> Exception | None:
    """Take the newest of one; what that raised."""
    try:
        scheme.receive()
    except Exception as error:  # noqa: BLE001  raised when the others are taken
        return error
    return None
