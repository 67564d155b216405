"""What a collector with many workers says of itself. Works after shutdown, asks nobody, never waits."""

from __future__ import annotations

from typing import Any

import torch

from swath.collect.background import Background
from swath.collect.views import viewed
from swath.collectors.fleet_assembly import Assembled
from swath.collectors.fleet_request import FleetRequest
from swath.collectors.fleet_status import fleet_stats, fleet_status_line


class FleetFacts:
    """Read-only properties, `stats()` and `repr`."""

    _assembled: Assembled
    _background: Background
    _request: FleetRequest
    _frames_per_batch: Any

    def stats(self, workers: str = "aggregate", timeout: float = 10.0) -> dict[str, Any]:  # noqa: ARG002  never waits
        """Numbers, bools and short strings on this collector; asks nobody, never blocks, works after shutdown.

        Args:
            workers: `"aggregate"`, `"per_worker"` or `"both"`.
            timeout: always kept.
        """
        return viewed(workers, *fleet_stats(self._assembled, self._background))

    def __repr__(self) -> str:
        """A status line."""
        return fleet_status_line(self._assembled, self._background)

    @property
    def frames_per_batch(self) -> Any:
        """The number given."""
        return self._frames_per_batch

    @property
    def requested_frames_per_batch(self) -> int:
        """Frames of a batch: the number given, rounded up to whole steps."""
        return self._assembled.collection.batch_frames

    def frames_per_batch_worker(self, worker_idx: int | None = None) -> int:
        """Frames asked of one worker at a time.

        Raises:
            ValueError: no such worker.
        """
        frames = self._assembled.collection.desk.frames
        worker = min(frames) if worker_idx is None else worker_idx
        if worker not in frames:
            raise ValueError(f"worker_idx={worker_idx!r}: there is no such worker; workers are {sorted(frames)}")
        return frames[worker]

    @property
    def total_frames(self) -> int:
        """Frames of the run; -1 for no end."""
        total = self._request.budget.total_frames
        return -1 if total is None else total

    @property
    def num_workers(self) -> int:
        """How many workers there are to be."""
        return len(self._assembled.collection.desk.frames)

    @property
    def num_collectors(self) -> int:
        """How many workers there are to be."""
        return self.num_workers

    @property
    def device(self) -> list[torch.device | None]:
        """The device given for all, by worker."""
        return [worker.devices.common for worker in self._request.workers]

    @property
    def env_device(self) -> list[torch.device | None]:
        """Where envs run, by worker."""
        return [one.env_device or torch.device("cpu") for _, one in sorted(self._assembled.described.items())]

    @property
    def policy_device(self) -> list[torch.device | None]:
        """Where policies run, by worker."""
        return [one.policy_device for _, one in sorted(self._assembled.described.items())]

    @property
    def storing_device(self) -> list[torch.device | None]:
        """Where batches live, by worker; `None` sets no device."""
        return [worker.devices.storing for worker in self._request.workers]

    def fake_tensordict(self) -> Any:
        """Not here.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("fake_tensordict() needs the env in this process; use Collector")

    @property
    def _whole_episodes(self) -> bool:
        return self._request.trajectories.per_batch is not None
