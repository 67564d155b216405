"""What collectors with many workers have in common, wherever their workers live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from swath.collectors.background import Background
from swath.collectors.base import BaseCollector, end_quietly
from swath.collectors.paths import paired
from swath.group.group import Call
from swath.workers.garbage import GarbageWatch


class ManyWorkers(BaseCollector):
    """Draws from a fleet. Faces say what is asked of it, and how it is saved and shut down.

    Control calls are answered between two fragments; facts ask nobody and never wait.
    """

    def reset(self, reset_idx: Any = None) -> None:
        """Begin fresh episodes in all envs, or in those of some workers; what is in flight of these is dropped.

        Args:
            reset_idx: one bool per worker.

        Raises:
            ValueError: not one bool per worker.
            WorkerLate: a worker did not answer in time.
        """
        chosen = None if reset_idx is None else self._chosen(reset_idx)
        collection = self.collection
        with collection.forgetting(chosen):
            calls = collection.group.to_all("reset")
            tickets = collection.group.send({worker: calls[worker] for worker in chosen or calls})
        collection.group.answers(tickets)

    def get_distant_attr(self, path: str) -> list[Any]:
        """What a path leads to in each worker, in order of workers; those that are gone for good are left out.

        Raises:
            AttributeError: a part is missing.
            WorkerLate: a worker did not answer in time, or did not come back.
        """
        group = self.collection.open_group
        return list(group.call_each(group.to_all("get_distant_attr", path)).values())

    def map_fn(
        self,
        method_name: str,
        list_of_args: Sequence[Sequence[Any]] | None = None,
        list_of_kwargs: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Any]:
        """Call a method of every worker, each with its own arguments; the answers in order of workers.

        Workers that are being replaced are waited for; those that are gone for good are left out.

        Raises:
            ValueError: not one entry per worker, or lists that are not of the same length.
            WorkerLate: a worker did not answer in time, or did not come back.
        """
        self.collection.gate.require_open()
        workers = sorted(self.collection.jobs.described)
        rows = paired(list_of_args, list_of_kwargs, len(workers))
        if len(rows) != len(workers):
            raise ValueError(f"Expected {len(workers)} argument entries, one per worker, got {len(rows)}")
        each = zip(workers, rows, strict=True)
        calls = {worker: Call("invoke", (method_name, args, kwargs)) for worker, (args, kwargs) in each}
        return list(self.collection.open_group.call_each(calls).values())

    def getattr_env(self, name: str) -> Any:
        """An attribute of the first worker's first env."""
        return self.collection.open_group.call_first("cascade_execute", "getattr_env", name)

    def getattr_policy(self, name: str) -> Any:
        """An attribute of the first worker's policy."""
        return self.collection.open_group.call_first("cascade_execute", "getattr_policy", name)

    def get_model(self, model_id: str) -> Any:
        """A copy of the model of an id, as the first worker has it.

        Raises:
            AttributeError: a path that leads nowhere.
        """
        return self.collection.open_group.call_first("get_model", model_id)

    def frames_per_batch_worker(self, worker_idx: int | None = None) -> int:
        """Frames asked of one worker at a time.

        Raises:
            ValueError: no such worker.
        """
        frames = self.collection.fragments.frames
        worker = min(frames) if worker_idx is None else worker_idx
        if worker not in frames:
            raise ValueError(f"worker_idx={worker_idx!r}: there is no such worker; workers are {sorted(frames)}")
        return frames[worker]

    def fake_tensordict(self) -> Any:
        """Not here.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("fake_tensordict() needs the env in this process; use Collector")

    def _chosen(self, reset_idx: Any) -> list[int]:
        asked, n_workers = np.asarray(reset_idx), len(self.collection.jobs.described)
        if asked.dtype != np.bool_ or asked.size != n_workers:
            raise ValueError(f"reset_idx={reset_idx!r} must be one bool per worker ({n_workers})")
        return [int(worker) for worker in np.flatnonzero(asked)]

    def _watched(self) -> Background:
        background = Background(self.collection)
        self._watch = GarbageWatch(self, partial(end_quietly, self.collection, background), at_exit=True)
        return background

    def _end(self, timeout: float, *, close_env: bool = True) -> None:
        """Stop background mode and end the workers; what closing their envs raised is raised."""
        try:
            super()._end(timeout, close_env=close_env)
        finally:
            self._watch.end()
