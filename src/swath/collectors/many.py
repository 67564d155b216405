"""What collectors with many workers have in common, wherever their workers live."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from swath.collectors.assembly import assemble_fleet
from swath.collectors.background import Background
from swath.collectors.base import BaseCollector, end_quietly
from swath.collectors.delivery import Hooks
from swath.collectors.messages import Description
from swath.collectors.paths import paired
from swath.collectors.request import CollectorRequest
from swath.collectors.status import facts_of
from swath.collectors.weight_settings import WeightSettings
from swath.errors import Closed
from swath.group.group import Call
from swath.report.progress import as_progress
from swath.workers.garbage import GarbageWatch


class ManyWorkers(BaseCollector):
    """Draws from a fleet. Faces say what is asked of it, and how it is saved and shut down.

    Control calls are answered between two fragments; facts ask nobody and never wait.
    """

    def described(self) -> Description:
        """What its batches and weights are like, as those of one worker."""
        cores = self.collection.jobs.described
        one, n_envs = cores[0], sum(core.num_envs for core in cores.values())
        if not self._request.order.sync:
            return replace(one, envs=n_envs)
        layout = replace(one.layout, batch_shape=(len(cores), *one.layout.batch_shape))
        return replace(one, num_envs=n_envs, layout=layout)

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
        calls = {worker: Call("invoke", (method_name, *row)) for worker, row in zip(workers, rows, strict=True)}
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
        frames = self.collection.plan.frames
        worker = min(frames) if worker_idx is None else worker_idx
        if worker not in frames:
            raise ValueError(f"worker_idx={worker_idx!r}: there is no such worker; workers are {sorted(frames)}")
        return frames[worker]

    @property
    def device(self) -> list[torch.device | None]:
        """The device given for all, by worker."""
        return [worker.options.devices.common for worker in self._request.workers]

    @property
    def env_device(self) -> list[torch.device | None]:
        """Where envs run, by worker."""
        return [one.env_device or torch.device("cpu") for _, one in sorted(self.collection.jobs.described.items())]

    @property
    def policy_device(self) -> list[torch.device | None]:
        """Where policies run, by worker."""
        return [one.policy_device for _, one in sorted(self.collection.jobs.described.items())]

    @property
    def storing_device(self) -> list[torch.device | None]:
        """Where batches live, by worker; `None` sets no device."""
        return [worker.options.devices.storing for worker in self._request.workers]

    def fake_tensordict(self) -> Any:
        """Not here.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("fake_tensordict() needs the env in this process; use Collector")

    def _facts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        with suppress(Closed):  # nothing more happens to the workers then
            self.collection.group.fleet.look()
            self.collection.group.sweep()
        return facts_of(self.collection, self._background)

    @property
    def _hooks(self) -> Hooks:
        return self.collection.jobs.hooks

    def _set_hooks(self, **changed: Any) -> None:
        hooks = self.collection.jobs.hooks = replace(self._hooks, **changed)
        self.collection.open_group.call("set_hooks", hooks)

    def _chosen(self, reset_idx: Any) -> list[int]:
        asked, n_workers = np.asarray(reset_idx), len(self.collection.jobs.described)
        if asked.dtype != np.bool_ or asked.size != n_workers:
            raise ValueError(f"reset_idx={reset_idx!r} must be one bool per worker ({n_workers})")
        return [int(worker) for worker in np.flatnonzero(asked)]

    def _begin(self, request: CollectorRequest, settings: WeightSettings) -> None:
        """Bring the workers up, and show them; blocks until all have built env and policy.

        Raises:
            ValueError: automatic updates have nothing to publish.
        """
        settings.require_source(request.automatic)
        view = as_progress(request.options.progress)
        self._request, self._worker_idx = request, request.options.worker_idx
        collection = self.collection = assemble_fleet(request, _weakly(self))
        self._background = Background(collection)
        self._watch = GarbageWatch(self, partial(end_quietly, collection, self._background), at_exit=True)
        try:
            self._begin_weights(settings)
        except BaseException:
            self._end(0.0)
            raise
        self._be_ready(view)

    def _end(self, timeout: float, *, close_env: bool = True) -> None:
        """Stop background mode and end the workers; what closing their envs raised is raised."""
        try:
            super()._end(timeout, close_env=close_env)
        finally:
            self._watch.end()


def _weakly(collector: ManyWorkers) -> Callable[[], None]:
    """Publishes the policy's weights; does not keep the collector alive."""
    mine = weakref.ref(collector)

    def republish() -> None:
        held = mine()
        if held is not None:
            held.update_policy_weights_()

    return republish
