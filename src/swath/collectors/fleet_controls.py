"""How a collector with many workers is steered while it lives: control calls, answered between two fragments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from swath.collect.background import Background
from swath.collect.fleet_calls import NO_KEYWORDS
from swath.collect.paths import call_at, follow
from swath.collect.worker import Seeding
from swath.collectors.checks import whole_number, worker_index
from swath.collectors.fleet_assembly import Assembled, move_fleet, seed_all
from swath.options import Hooks, seconds
from swath.seeds import derive

PAUSE_S = 30.0
ONE_EACH = "Expected {workers} argument entries, one per worker, got {got}"


class FleetControls:
    """Fresh episodes, seeds, background mode, hooks, and reaching into workers. After shutdown all raise `Closed`."""

    _assembled: Assembled
    _background: Background
    _worker_idx: int | None

    def reset(self, reset_idx: Any = None) -> None:
        """Begin fresh episodes in all envs, or in those of some workers; what is in flight of these is dropped.

        Args:
            reset_idx: one bool per worker.

        Raises:
            ValueError: not one bool per worker.
            WorkerLate: a worker did not answer in time.
        """
        chosen = None if reset_idx is None else self._chosen(reset_idx)
        collection = self._assembled.collection
        with collection.forgetting(chosen):
            tickets = collection.calls.send("reset", (), {}, chosen)
        collection.calls.answers(tickets)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed envs, action sampling and the generators in every worker; begin fresh episodes.

        Args:
            seed: the root seed.
            static_seed: give every env `seed` itself.

        Returns:
            The number with which another call goes on without overlap; `seed` with `static_seed`.
        """
        root = whole_number("seed", seed)
        self._assembled.collection.gate.require_open()
        seed_all(self._assembled, Seeding(root, static_seed))
        return root if static_seed else derive(root, "next")

    def start(self) -> None:
        """Collect into the replay buffer in a background thread, until the total, `pause` or shutdown.

        Raises:
            RuntimeError: there is no replay buffer.
            Exception: what stopped the thread before.
        """
        self._assembled.collection.gate.require_open()
        if self._assembled.collection.buffer is None:
            raise RuntimeError("start() collects into a replay buffer in the background: pass replay_buffer=")
        self._background.raise_kept()
        self._background.start()

    @contextmanager
    def pause(self, timeout: float = PAUSE_S, *, resume: bool = True) -> Iterator[None]:
        """Within the `with` block nothing is written to the replay buffer by the background thread.

        Args:
            timeout: how long to wait for what is in flight, in seconds.
            resume: whether to go on afterwards; `start()` does so later, too.

        Raises:
            ValueError: `timeout` is no finite number of seconds.
            WorkerLate: what is in flight was not written in time; collection goes on.
            Exception: what stopped the thread.
        """
        self._assembled.collection.gate.require_open()
        self._background.raise_kept()
        self._background.pause(seconds("timeout", timeout))
        try:
            yield
        finally:
            if resume:
                self._background.resume()
            else:
                self._background.stop(timeout)

    def is_running(self) -> bool:
        """Whether it collects in the background; also while `pause` holds it."""
        return self._background.running

    def cascade_execute(self, attr_path: str, *args: Any, **kwargs: Any) -> Any:
        """Follow names, dots and `[literal]` from this object and call what is found.

        Raises:
            AttributeError: a part is missing.
            ValueError: arguments for something that cannot be called.
        """
        self._assembled.collection.gate.require_open()
        return call_at(self, attr_path, args, kwargs)

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
        self._assembled.collection.gate.require_open()
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
        return list(self._assembled.collection.calls.everyone(calls).values())

    def getattr_env(self, name: str) -> Any:
        """An attribute of the first worker's first env."""
        return self._assembled.collection.calls.first("getattr_env", name)

    def getattr_policy(self, name: str) -> Any:
        """An attribute of the first worker's policy."""
        return self._assembled.collection.calls.first("getattr_policy", name)

    def getattr_rb(self, name: str) -> Any:
        """An attribute of the replay buffer."""
        self._assembled.collection.gate.require_open()
        return follow(self._assembled.collection.buffer, name)

    def get_model(self, model_id: str) -> Any:
        """A copy of the model of an id, as the first worker has it.

        Raises:
            AttributeError: a path that leads nowhere.
        """
        return self._assembled.collection.calls.first("get_model", model_id)

    @property
    def worker_idx(self) -> int:
        """Index of this collector inside a larger one; another one begins fresh episodes.

        In trajectory ids and seeds its worker `j` is worker `worker_idx * W + j`.

        Raises:
            RuntimeError: it was never set.
        """
        if self._worker_idx is None:
            raise RuntimeError("worker_idx was never set; pass worker_idx= or assign it")
        return self._worker_idx

    @worker_idx.setter
    def worker_idx(self, value: int) -> None:
        index = worker_index(value)
        move_fleet(self._assembled, index)
        self._worker_idx = index

    @property
    def pre_collect_hook(self) -> Callable[[], Any] | None:
        """Called before each fragment, in the worker."""
        return self._assembled.jobs.standing.hooks.before

    @pre_collect_hook.setter
    def pre_collect_hook(self, hook: Callable[[], Any] | None) -> None:
        self._set_hooks(replace(self._assembled.jobs.standing.hooks, before=hook))

    @property
    def post_collect_hook(self) -> Callable[[Any], Any] | None:
        """Called with each fragment, in the worker."""
        return self._assembled.jobs.standing.hooks.after

    @post_collect_hook.setter
    def post_collect_hook(self, hook: Callable[[Any], Any] | None) -> None:
        self._set_hooks(replace(self._assembled.jobs.standing.hooks, after=hook))

    def set_post_collect_hook(self, hook: Callable[[Any], Any] | None) -> None:
        """The same as assigning `post_collect_hook`."""
        self.post_collect_hook = hook

    def _set_hooks(self, hooks: Hooks) -> None:
        collection = self._assembled.collection
        collection.gate.require_open()
        self._assembled.jobs.standing.hooks = hooks
        collection.calls.control("set_hooks", (hooks,))

    def _everywhere(self, method: str, *args: Any) -> list[Any]:
        """The answers of all workers that are not gone."""
        calls = dict.fromkeys(sorted(self._assembled.described), (method, args, NO_KEYWORDS))
        return list(self._assembled.collection.calls.everyone(calls).values())

    def _chosen(self, reset_idx: Any) -> list[int]:
        asked, n_workers = np.asarray(reset_idx), len(self._assembled.described)
        if asked.dtype != np.bool_ or asked.size != n_workers:
            raise ValueError(f"reset_idx={reset_idx!r} must be one bool per worker ({n_workers})")
        return [int(worker) for worker in np.flatnonzero(asked)]
