"""What a collector in this process says of itself. Works after shutdown, never waits."""

from __future__ import annotations

from typing import Any

import torch

from swath.collect.background import Background
from swath.collect.collection import Collection
from swath.collect.making.acting import Acting
from swath.collect.making.devices import Devices
from swath.collectors.status import collector_stats, status_line


class Facts:
    """Read-only properties, `stats()` and `repr`."""

    _collection: Collection
    _background: Background
    _acting: Acting
    _devices: Devices
    _frames_per_batch: int

    def stats(self, workers: str = "aggregate", timeout: float = 10.0) -> dict[str, Any]:  # noqa: ARG002  never waits
        """Numbers, bools and short strings on this collector; asks nobody, never blocks, works after shutdown.

        Args:
            workers: `"aggregate"`, `"per_worker"` or `"both"`.
            timeout: always kept.
        """
        return collector_stats(self._collection, self._background, workers)

    def __repr__(self) -> str:
        """A status line."""
        return status_line(self._collection, self._background)

    @property
    def env(self) -> Any:
        """The live env, vector env, or list of envs."""
        return self._collection.worker.host.env

    @property
    def policy(self) -> Any:
        """The policy that acts within draws."""
        return self._acting.policy

    @property
    def frames_per_batch(self) -> int:
        """The number given."""
        return self._frames_per_batch

    @property
    def requested_frames_per_batch(self) -> int:
        """Frames of a batch: the number given, rounded up to whole steps."""
        return self._collection.batch_frames

    def frames_per_batch_worker(self, worker_idx: int | None = None) -> int:
        """Frames asked of one worker.

        Raises:
            ValueError: no such worker.
        """
        mine = self._collection.worker.place.worker
        if worker_idx not in (None, 0, mine):
            raise ValueError(f"worker_idx={worker_idx!r}: this collector has worker {mine} only")
        return self._collection.batch_frames

    @property
    def total_frames(self) -> int:
        """Frames of the run; -1 for no end."""
        total = self._collection.budget.total_frames
        return -1 if total is None else total

    @property
    def num_workers(self) -> int:
        """One."""
        return 1

    @property
    def num_collectors(self) -> int:
        """One."""
        return 1

    @property
    def device(self) -> torch.device | None:
        """The device given for all."""
        return self._devices.common

    @property
    def env_device(self) -> torch.device:
        """Where the env runs."""
        return self._collection.worker.host.spec.device or torch.device("cpu")

    @property
    def policy_device(self) -> torch.device | None:
        """Where the policy runs, as given or found; `None` if neither says more than the CPU."""
        return self._acting.device

    @property
    def storing_device(self) -> torch.device | None:
        """Where batches live; `None` sets no device."""
        return self._devices.storing

    @property
    def _whole_episodes(self) -> bool:
        return self._collection.whole is not None
