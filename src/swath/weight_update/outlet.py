"""What a collector is for a scheme: where its weights go out, and where other collectors of this process read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

from swath.weights.snapshot import Snapshot


class Newest(NamedTuple):
    """The newest weights that a reader has not seen.

    Attributes:
        serial: grows with each publication.
        snapshot: the reader's own.
    """

    serial: int
    snapshot: Snapshot


class Outlet(Protocol):
    """Publishes weights to the workers of one collector. Any thread may use it."""

    @property
    def key(self) -> str:
        """Names the collector; no other one has it."""

    def attach(self, model_id: str, scheme: Any) -> None:
        """A scheme serves this model from now on.

        Raises:
            RuntimeError: another one does.
        """

    def publish(self, given: Mapping[str, Any], worker_ids: Any = None) -> int:
        """Weights by model as one version; those that are `None` are fetched."""

    def wait(self, worker_ids: Any, timeout_s: float | None) -> None:
        """Wait until these workers run the newest version.

        Raises:
            WorkerLate: they do not in time.
        """

    def newest(self, model_id: str, worker: int | None, seen: int) -> Newest | None:
        """What was published last for a worker, or for all; `None` if that was no later than `seen`."""


OUTLETS: WeakValueDictionary[str, Outlet] = WeakValueDictionary()
"""Those that others may read: of the collectors of this process that are not shut down, by key."""

OF_COLLECTORS: WeakKeyDictionary[Any, Outlet] = WeakKeyDictionary()
"""By collector."""


def outlet_of(context: Any) -> Outlet | None:
    """That of a collector; `None` for anything else."""
    return None if context is None else OF_COLLECTORS.get(context)
