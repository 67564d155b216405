"""How a collector in this process is steered while it lives: control calls come between two fragments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from swath.collect.background import Background
from swath.collect.collection import Collection
from swath.collectors.checks import whole_number, worker_index
from swath.options import seconds
from swath.seeds import derive

PAUSE_S = 30.0


class Controls:
    """Fresh episodes, seeds, background mode, hooks. After shutdown all raise `Closed`."""

    _collection: Collection
    _background: Background
    _worker_idx: int | None

    def reset(self, index: Any = None) -> None:
        """Begin fresh episodes with the next batch, in all envs or in those of `index`; later batches hold later data.

        Args:
            index: env numbers, or one bool per env.

        Raises:
            ValueError: `index` names no envs, or names some of a vector env that cannot reset single envs.
        """
        spec = self._collection.worker.host.spec
        if index is None:
            self._collection.begin_episodes(None)
            return
        if not spec.resettable:
            raise ValueError(f"index={index!r}: this vector env cannot reset single envs; reset all of them")
        self._collection.begin_episodes(_chosen(index, spec.num_envs))

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed envs, action sampling and the generators as this collector sees them; begin fresh episodes.

        Args:
            seed: the root seed.
            static_seed: give every env `seed` itself.

        Returns:
            The number with which another call goes on without overlap; `seed` with `static_seed`.
        """
        root = whole_number("seed", seed)
        self._collection.set_seed(root, static=static_seed)
        return root if static_seed else derive(root, "next")

    def start(self) -> None:
        """Collect into the replay buffer in a background thread, until the total, `pause` or shutdown.

        The thread acts on a copy of the policy made now; `update_policy_weights_` renews it. No-op if it is running.

        Raises:
            RuntimeError: there is no replay buffer.
            Exception: what stopped the thread before.
        """
        self._collection.gate.require_open()
        if self._collection.buffer is None:
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
        self._collection.gate.require_open()
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

    @property
    def worker_idx(self) -> int:
        """Index of this collector inside a larger one; another one begins fresh episodes.

        Raises:
            RuntimeError: it was never set.
        """
        if self._worker_idx is None:
            raise RuntimeError("worker_idx was never set; pass worker_idx= or assign it")
        return self._worker_idx

    @worker_idx.setter
    def worker_idx(self, value: int) -> None:
        index = worker_index(value)
        with self._collection.gate.control():
            self._worker_idx = index
            self._collection.worker.move_to(index)

    @property
    def pre_collect_hook(self) -> Callable[[], Any] | None:
        """Called before each fragment."""
        return self._collection.shaper.hooks.before

    @pre_collect_hook.setter
    def pre_collect_hook(self, hook: Callable[[], Any] | None) -> None:
        self._collection.gate.require_open()
        self._collection.shaper.hooks = replace(self._collection.shaper.hooks, before=hook)

    @property
    def post_collect_hook(self) -> Callable[[Any], Any] | None:
        """Called with each batch before it is handed out."""
        return self._collection.shaper.hooks.after

    @post_collect_hook.setter
    def post_collect_hook(self, hook: Callable[[Any], Any] | None) -> None:
        self._collection.gate.require_open()
        self._collection.shaper.hooks = replace(self._collection.shaper.hooks, after=hook)

    def set_post_collect_hook(self, hook: Callable[[Any], Any] | None) -> None:
        """The same as assigning `post_collect_hook`."""
        self.post_collect_hook = hook


def _chosen(index: Any, num_envs: int) -> list[int]:
    asked = np.asarray(index)
    if asked.dtype == np.bool_:
        if asked.size != num_envs:
            raise ValueError(f"index={index!r} has {asked.size} bools; give one per env ({num_envs}), or env numbers")
        return [int(env) for env in np.flatnonzero(asked)]
    numbers = asked.reshape(-1)
    if numbers.dtype.kind not in "iu" or not all(-num_envs <= env < num_envs for env in numbers):
        raise ValueError(f"index={index!r} names no envs; give numbers below {num_envs}, or one bool per env")
    return sorted({int(env) % num_envs for env in numbers})
