"""The updater for workers that are Ray actors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swath.collectors.updaters.base import WeightUpdaterBase
from swath.extras import need
from swath.weights.manifest import snapshot_of


class RayWeightUpdater(WeightUpdaterBase):
    """Sends weights to Ray actors, each once in so many batches, and waits for none.

    With a collector the weights go onto its channel: workers take them with their next request, those that are
    replaced or added later, too. Without one they go to the actors directly.

    Args:
        policy_weights: read at each push.
        remote_collectors: handles of actors, as `RayCollector.remote_collectors` gives them.
        max_interval: how many batches of a worker may pass between updates; 0 updates at each push, 1 every second.
    """

    def __init__(self, policy_weights: Any, remote_collectors: Sequence[Any], max_interval: int = 0) -> None:
        self.policy_weights = policy_weights
        self.remote_collectors = remote_collectors
        self.max_interval = max(0, max_interval)
        self._pending: list[Any] = []
        self._batches: dict[int, int] = {}
        self._updated: dict[int, tuple[int, int]] = {}

    def all_worker_ids(self) -> list[int]:
        """Indices of the actors; with a collector, those of its workers that are there or coming back."""
        outlet = self._outlet()
        return list(range(len(self.remote_collectors))) if outlet is None else list(outlet.progress())

    def push_weights(self, policy_or_weights: Any = None, worker_ids: Any = None) -> None:
        """Send weights to workers, then call the post hooks.

        Raises:
            Closed: the collector was shut down.
            Exception: what an earlier delivery failed with.
        """
        self._raise_failed()
        super().push_weights(policy_or_weights, worker_ids)

    def _get_server_weights(self) -> Stored:
        """A snapshot, in the object store once it is sent from there."""
        return Stored(self.policy_weights)

    def _maybe_map_weights(self, policy_or_weights: Any) -> Any:
        """The weights as they are; handles too."""
        return policy_or_weights

    def _deliver(self, weights: Any, worker_ids: Any) -> None:
        """To all of them the same snapshot."""
        super()._deliver(_stored(weights), worker_ids)

    def _skip_update(self, worker_id: int) -> bool:
        """Whether too few batches have passed since the worker's last update."""
        outlet = self._outlet()
        if outlet is None:
            passed = self._batches[worker_id] = self._batches.get(worker_id, 0) + 1
            return passed <= self.max_interval
        life, made = outlet.progress().get(worker_id, (0, 0))
        life_then, made_then = self._updated.get(worker_id, (0, 0))
        return self.max_interval > 0 and life == life_then and made - made_then <= self.max_interval

    def _sync_weights_with_worker(self, worker_id: int | None = None, server_weights: Any = None) -> None:
        outlet, stored = self._outlet(), _stored(server_weights)
        if outlet is None:
            self._send(worker_id, stored)
            return
        self.collector.publish_weights(stored.weights, worker_ids=worker_id)
        for worker, progress in outlet.progress().items():
            if worker_id in (None, worker):
                self._updated[worker] = progress

    def _send(self, worker_id: int | None, stored: Stored) -> None:
        for worker in self.all_worker_ids() if worker_id is None else [worker_id]:
            if worker not in self.all_worker_ids():
                raise ValueError(f"worker_ids={worker!r}: there is no such actor; there are {self.all_worker_ids()}")
            answer = self.remote_collectors[worker].update_policy_weights_.remote(policy_weights=stored.reference)
            self._pending.append(answer)
            self._batches[worker] = 0

    def _raise_failed(self) -> None:
        """Raise the first failure since the last call; the others are in its notes."""
        if not self._pending:
            return
        done, self._pending = _ray().wait(self._pending, num_returns=len(self._pending), timeout=0)
        failures = [error for error in map(_failure, done) if error is not None]
        if failures:
            for other in failures[1:]:
                failures[0].add_note(f"another delivery failed, too: {other!r}")
            raise failures[0]


def _stored(weights: Any) -> Stored:
    return weights if isinstance(weights, Stored) else Stored(weights)


class Stored:
    """Weights as they were when it was made; in Ray's object store, once, as soon as somebody needs them there.

    Args:
        source: a module, a TensorDict or a dict, or a reference of Ray's to one of these.
    """

    def __init__(self, source: Any) -> None:
        if isinstance(source, _ray().ObjectRef):
            source = _ray().get(source)
        self.snapshot = snapshot_of(source)
        self.weights = self.snapshot.weights()
        self._reference: Any = None

    @property
    def reference(self) -> Any:
        """Of the snapshot in the store."""
        if self._reference is None:
            self._reference = _ray().put(self.snapshot)
        return self._reference


def _ray() -> Any:
    """Ray, if it is installed."""
    return need("ray", extra="ray", why="for weights that are sent to Ray actors")


def _failure(answer: Any) -> Exception | None:
    try:
        _ray().get(answer)
    except Exception as error:  # noqa: BLE001  of any type; the caller raises it
        return error
    return None
