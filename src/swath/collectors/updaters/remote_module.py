"""The updater for policies that this process has no copy of."""

from __future__ import annotations

from typing import Any

from swath.collectors.updaters.base import WeightUpdaterBase


class RemoteModuleWeightUpdater(WeightUpdaterBase):
    """Publishes the weights that are passed; without any it raises."""

    def _found(self, given: Any) -> Any:
        if given is None:
            raise RuntimeError("RemoteModuleWeightUpdater has no weights of its own: pass weights")
        return given

    def _sync_weights_with_worker(self, *, worker_id: Any = None, server_weights: Any) -> None:
        if self.collector is None:
            raise RuntimeError("RemoteModuleWeightUpdater has no collector: set it as a collector's weight_updater")
        self.collector.publish_weights(server_weights, worker_ids=worker_id)
