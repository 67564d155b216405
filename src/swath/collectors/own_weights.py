"""Where the weights of a collector in this process go: into the policy that acts here, between two fragments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from swath.collect.collection import Collection
from swath.collect.making.acting import Acting
from swath.collect.making.devices import as_device
from swath.collectors.outlet import Items, Publication, WeightOutlet
from swath.weight_update.scheme import WeightSyncScheme
from swath.weights.loading import plan
from swath.weights.manifest import Manifest
from swath.weights.names import POLICY

Change = Callable[[], None]


class OwnWeights(WeightOutlet):
    """Publishes weights within this process.

    Args:
        collection: the service.
        acting: its policy.
        find: what the path of a model leads to.
    """

    def __init__(self, collection: Collection, acting: Acting, find: Callable[[str], Any]) -> None:
        super().__init__(None if acting.built else acting.given)
        self._collection, self._acting, self._find = collection, acting, find

    @property
    def version(self) -> int:
        """The newest that was published."""
        return self._collection.version

    @property
    def workers(self) -> Sequence[int]:
        """There is one."""
        return (0,)

    def require_open(self) -> None:
        """Raise `Closed` after shutdown."""
        self._collection.gate.require_open()

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
        if worker_ids is None:
            return None
        if self.updater is None:
            raise TypeError("worker_ids: a Collector in this process has one worker; leave it out")
        device = self._acting.device or torch.device("cpu")
        for one in worker_ids if isinstance(worker_ids, list | tuple) else [worker_ids]:
            here = one == 0 if isinstance(one, int) else as_device("worker_ids", one) == device
            if not here:
                raise ValueError(f"worker_ids={one!r}: there is worker 0 on {device} only; leave it out")
        return [0]

    def wait(self, worker_ids: Any, timeout_s: float | None) -> None:  # noqa: ARG002  there is one worker
        """Wait until the running fragment has ended."""
        self._collection.gate.pass_through(timeout_s)

    def progress(self) -> dict[int, tuple[int, int]]:
        """Its life, and how many batches it has made."""
        return {0: (self._collection.worker.life, self._collection.counters.batches)}

    def model(self, model_id: str) -> Any:
        """The model of an id.

        Raises:
            AttributeError: its path leads nowhere.
        """
        return self._acting.policy if model_id == POLICY else self._find(model_id)

    def _has_weights(self, model_id: str) -> bool:
        return not Manifest.of(self._acting.module if model_id == POLICY else self.model(model_id)).empty

    def _taken(self, model_id: str, source: Any) -> Change | None:
        if model_id == POLICY:
            return self._acting.plan(source)
        model = self.model(model_id)
        return plan(model, source) if isinstance(model, nn.Module) else None

    def _put(self, publication: Publication) -> int:
        items: Items = {**publication.everyone, **publication.each.get(0, {})}
        changes = [*publication.also, *(change for change in items.values() if change is not None)]

        def change() -> None:
            for one in changes:
                one()

        return self._collection.publish(change if changes else None)
