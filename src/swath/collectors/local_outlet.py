"""Where the weights of a collector in this process go: into the policy that acts here, between two fragments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from swath.collect.remote import RemoteWorker
from swath.collect.service import CollectorService
from swath.collectors.outlet import WeightOutlet
from swath.weight_update.scheme import WeightSyncScheme
from swath.weights.manifest import Manifest
from swath.weights.snapshot import POLICY, Snapshot


class LocalOutlet(WeightOutlet):
    """Publishes weights within this process, where the user's own policy acts.

    Args:
        collection: the collection and its worker.
        member: the worker.
    """

    def __init__(self, collection: CollectorService, member: RemoteWorker) -> None:
        super().__init__(collection, None if member.acting.built else member.acting.given)
        self.key, self._member = "", member

    def attach(self, model_id: str, scheme: WeightSyncScheme) -> None:
        """Refused.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            f"{scheme} cannot send {model_id!r} of a Collector in this process, where the policy itself acts; call "
            "update_policy_weights_()"
        )

    def addressed(self, worker_ids: Any) -> list[int] | None:
        """The one worker; it can be named where an updater may do so.

        Raises:
            TypeError: there is no updater.
            ValueError: another worker or device.
        """
        if worker_ids is not None and self.updater is None:
            raise TypeError("worker_ids: a Collector in this process has one worker; leave it out")
        return super().addressed(worker_ids)

    def wait(self, worker_ids: Any, timeout_s: float | None) -> None:  # noqa: ARG002  there is one worker
        """Wait until the running fragment has ended."""
        self._collection.gate.pass_through(timeout_s)

    def _taken(self, model_id: str, source: Any) -> Snapshot | None:
        """A copy; of the policy that acts itself there is nothing to copy."""
        own = source is self.policy and self._member.acting.acts_itself
        return None if own and model_id == POLICY else super()._taken(model_id, source)

    def _change(self, change: Callable[[], None]) -> None:
        """Change tensors, which may be those that act, between two fragments."""
        self._collection.gate.soon(change)

    def _asked(self, model_id: str) -> Manifest:
        return self._member.manifest_of(model_id)
