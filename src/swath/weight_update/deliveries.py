"""Weights sent to Ray actors directly: nobody waits for them, and what fails is raised later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from swath.extras import need
from swath.weights.manifest import Manifest
from swath.weights.snapshot import Snapshot, copied


class Stored:
    """Weights as they were when it was made; in Ray's object store, once, as soon as somebody needs them there.

    Args:
        source: a module, a TensorDict or a dict, or a reference of Ray's to one of these.
    """

    def __init__(self, source: Any) -> None:
        if isinstance(source, ray().ObjectRef):
            source = ray().get(source)
        manifest = Manifest.of_weights(source)
        self.snapshot: Snapshot = copied(manifest.fitted(source), manifest)
        self.weights = self.snapshot.weights()
        self._reference: Any = None

    @property
    def reference(self) -> Any:
        """Of the snapshot in the store."""
        if self._reference is None:
            self._reference = ray().put(self.snapshot)
        return self._reference


class Deliveries:
    """What was sent to actors. One thread at a time."""

    def __init__(self) -> None:
        self._pending: list[Any] = []

    def send(self, actors: Iterable[Any], stored: Stored) -> None:
        """Send weights to actors and return at once."""
        answers = [actor.update_policy_weights_.remote(policy_weights=stored.reference) for actor in actors]
        self._pending.extend(answer for answer in answers if isinstance(answer, ray().ObjectRef))

    def raise_failed(self) -> None:
        """Raise what has failed since the last call.

        Raises:
            Exception: the first failure; the others are in its notes.
        """
        if not self._pending:
            return
        done, self._pending = ray().wait(self._pending, num_returns=len(self._pending), timeout=0)
        failures = [error for error in map(_failure, done) if error is not None]
        if failures:
            for other in failures[1:]:
                failures[0].add_note(f"another delivery failed, too: {other!r}")
            raise failures[0]


def ray() -> Any:
    """Ray, if it is installed."""
    return need("ray", extra="ray", why="for weights that are sent to Ray actors")


def _failure(answer: Any) -> Exception | None:
    try:
        ray().get(answer)
    except Exception as error:  # noqa: BLE001  of any type; the caller raises it
        return error
    return None
