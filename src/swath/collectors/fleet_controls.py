"""What collectors with many workers add to all others: they reach envs and policies by calls of their workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from swath.collect.fleet_calls import NO_KEYWORDS
from swath.collect.fleet_collection import FleetCollection
from swath.collect.worker import Seeding
from swath.collectors.base import BaseCollector
from swath.collectors.fleet_assembly import Assembled, move_fleet, seed_all
from swath.collectors.fleet_request import FleetRequest
from swath.collectors.status import fleet_facts, fleet_status_line
from swath.errors import Closed
from swath.options import Hooks

ONE_EACH = "Expected {workers} argument entries, one per worker, got {got}"


class FleetControls(BaseCollector):
    """Control calls are answered between two fragments; facts ask nobody and never wait."""

    _collection: FleetCollection
    _assembled: Assembled
    _request: FleetRequest

    def reset(self, reset_idx: Any = None) -> None:
        """Begin fresh episodes in all envs, or in those of some workers; what is in flight of these is dropped.

        Args:
            reset_idx: one bool per worker.

        Raises:
            ValueError: not one bool per worker.
            WorkerLate: a worker did not answer in time.
        """
        chosen = None if reset_idx is None else self._chosen(reset_idx)
        collection = self._collection
        with collection.forgetting(chosen):
            tickets = collection.calls.send("reset", (), {}, chosen)
        collection.calls.answers(tickets)

    def get_distant_attr(self, path: str) -> list[Any]:
        """What a path leads to in each worker, in order of workers; those that are gone for good are left out.

        Raises:
            AttributeError: a part is missing.
            WorkerLate: a worker did not answer in time, or did not come back.
        """
        return self._everywhere("get_distant_attr", path)

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
        self._collection.gate.require_open()
        workers = sorted(self._assembled.described)
        positional = list_of_args if list_of_args is not None else [()] * len(workers)
        named = list_of_kwargs if list_of_kwargs is not None else [{}] * len(workers)
        if list_of_args is not None and list_of_kwargs is not None and len(positional) != len(named):
            raise ValueError(
                f"list_of_args has {len(positional)} entries, list_of_kwargs {len(named)}; they must be of the "
                "same length"
            )
        for given in (positional, named):
            if len(given) != len(workers):
                raise ValueError(ONE_EACH.format(workers=len(workers), got=len(given)))
        calls = {
            worker: ("invoke", (method_name, args, kwargs), NO_KEYWORDS)
            for worker, args, kwargs in zip(workers, positional, named, strict=True)
        }
        return list(self._collection.calls.everyone(calls).values())

    def getattr_env(self, name: str) -> Any:
        """An attribute of the first worker's first env."""
        return self._collection.calls.first("getattr_env", name)

    def getattr_policy(self, name: str) -> Any:
        """An attribute of the first worker's policy."""
        return self._collection.calls.first("getattr_policy", name)

    def get_model(self, model_id: str) -> Any:
        """A copy of the model of an id, as the first worker has it.

        Raises:
            AttributeError: a path that leads nowhere.
        """
        return self._collection.calls.first("get_model", model_id)

    def frames_per_batch_worker(self, worker_idx: int | None = None) -> int:
        """Frames asked of one worker at a time.

        Raises:
            ValueError: no such worker.
        """
        frames = self._collection.desk.frames
        worker = min(frames) if worker_idx is None else worker_idx
        if worker not in frames:
            raise ValueError(f"worker_idx={worker_idx!r}: there is no such worker; workers are {sorted(frames)}")
        return frames[worker]

    @property
    def num_workers(self) -> int:
        """How many workers there are to be."""
        return len(self._collection.desk.frames)

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

    def __repr__(self) -> str:
        """A status line."""
        return fleet_status_line(self._collection, self._background)

    def _facts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        with suppress(Closed):  # nothing more happens to the workers then
            self._assembled.fleet.look()
            self._collection.desk.sweep()
        return fleet_facts(self._collection, self._background)

    def _seed(self, root: int, *, static: bool) -> None:
        seed_all(self._assembled, Seeding(root, static))

    def _move_to(self, index: int) -> None:
        move_fleet(self._assembled, index)

    @property
    def _hooks(self) -> Hooks:
        return self._assembled.jobs.standing.hooks

    def _set_hooks(self, **changed: Any) -> None:
        hooks = self._assembled.jobs.standing.hooks = replace(self._hooks, **changed)
        self._collection.calls.control("set_hooks", (hooks,))

    def _everywhere(self, method: str, *args: Any) -> list[Any]:
        """The answers of all workers that are not gone."""
        calls = dict.fromkeys(sorted(self._assembled.described), (method, args, NO_KEYWORDS))
        return list(self._collection.calls.everyone(calls).values())

    def _chosen(self, reset_idx: Any) -> list[int]:
        asked, n_workers = np.asarray(reset_idx), len(self._assembled.described)
        if asked.dtype != np.bool_ or asked.size != n_workers:
            raise ValueError(f"reset_idx={reset_idx!r} must be one bool per worker ({n_workers})")
        return [int(worker) for worker in np.flatnonzero(asked)]
