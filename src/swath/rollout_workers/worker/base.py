"""What a `RolloutWorker` has, and its methods for its envs, its place, and those who use it together."""

from __future__ import annotations

import platform
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from swath.errors import Closed
from swath.options import seconds
from swath.rollout.seeding import PrivateStreams
from swath.rollout_workers.callbacks import DefaultCallbacks
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.env_context import EnvContext
from swath.rollout_workers.worker.envs import Envs
from swath.rollout_workers.worker.learning import Learning
from swath.rollout_workers.worker.policies import Policies
from swath.rollout_workers.worker.weights import WeightBook

_ROUTED = ("192.0.2.1", 9)
"""An address for documentation: nothing is sent there, the system only says by which interface it would be."""


class WorkerBase:
    """What a worker has.

    Attributes:
        worker_index: 0 is the local worker.
        num_workers: remote workers of the set.
        recreated_worker: whether it replaces one that was lost.
        env_creator: what makes its envs.
        default_policy_class: the class of policies whose spec has none.
        config: its settings.
        callbacks: the user's.
        env_context: what its envs were told, but for their numbers.
        envs: its envs; None without.
        life: which of its lives; a set counts them.
    """

    worker_index: int
    num_workers: int
    recreated_worker: bool
    env_creator: Any
    default_policy_class: type | None
    config: AlgorithmConfig
    callbacks: DefaultCallbacks
    env_context: EnvContext
    envs: Envs | None
    life: int
    _given: dict[str, Any]
    _policies: Policies
    _book: WeightBook
    _learning: Learning
    _streams: PrivateStreams | None
    _closed: bool
    _lock: threading.Lock

    @property
    def policy_map(self) -> dict[str, Any]:
        """The policies by id."""
        return self._policies.map

    @property
    def env(self) -> Any:
        """Sub-env 0 as the creator made it, or the vector env; None without env."""
        return None if self.envs is None else self.envs.first

    @property
    def async_env(self) -> Any:
        """The view of all envs; None without env."""
        return None if self.envs is None else self.envs.view

    @property
    def spaces(self) -> dict[str, tuple[Any, Any]]:
        """As `get_spaces` gives them."""
        return self.get_spaces()

    def get_spaces(self) -> dict[str, tuple[Any, Any]]:
        """`(observation_space, action_space)` by policy id, before preprocessing, and of the env under `"__env__"`.

        Those of an env whose agents have one each are dicts by agent.
        """
        specs = self._policies.specs.items()
        spaces = {policy_id: (spec.observation_space, spec.action_space) for policy_id, spec in specs}
        given = self._given["spaces"] or {}
        env = given.get("__env__") if self.envs is None else self.envs.spaces
        return spaces if env is None else {**spaces, "__env__": env}

    def foreach_env(self, func: Callable[[Any], Any]) -> list[Any]:
        """`func(sub_env)` of each; of the vector env, if it shows no sub-envs; empty without env."""
        return [] if self.envs is None else [func(env) for env in self.envs.shown]

    def foreach_env_with_context(self, func: Callable[[Any, EnvContext], Any]) -> list[Any]:
        """`func(sub_env, context)` of each, with the context's `vector_index` as the sub-env's number."""
        if self.envs is None:
            return []
        context_of = self.envs.maker.context_of
        return [func(env, context_of(i)) for i, env in enumerate(self.envs.shown)]

    def assert_healthy(self) -> None:
        """Check that it can work.

        Raises:
            AssertionError: it was stopped, or has no policy.
        """
        assert not self._closed, f"worker {self.worker_index} was stopped"
        assert self.policy_map, f"worker {self.worker_index} has no policy"

    def lock(self, timeout_s: float = 600.0) -> None:
        """Take the lock that callers may agree on; no method takes it by itself.

        Raises:
            TimeoutError: it was not free in time.
            ValueError: `timeout_s` is no number of seconds.
        """
        if not self._lock.acquire(timeout=seconds("timeout_s", timeout_s)):
            raise TimeoutError(f"the lock of worker {self.worker_index} was not free within {timeout_s} s")

    def unlock(self) -> None:
        """Give the lock back.

        Raises:
            RuntimeError: it is free.
        """
        if not self._lock.locked():
            raise RuntimeError(f"the lock of worker {self.worker_index} is free already; lock() comes first")
        self._lock.release()

    def get_host(self) -> str:
        """The name of the machine."""
        return platform.node()

    def get_node_ip(self) -> str:
        """The node's address: Ray's if it runs here, else that of the interface to the outside, else the loopback's."""
        ray = sys.modules.get("ray")
        if ray is not None and ray.is_initialized():
            return str(ray.util.get_node_ip_address())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(_ROUTED)
            except OSError:
                return "127.0.0.1"
            return str(probe.getsockname()[0])

    def find_free_port(self) -> int:
        """An IPv4 port that is free at the moment."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("", 0))
            port: int = probe.getsockname()[1]
            return port

    def creation_args(self) -> dict[str, Any]:
        """The constructor's arguments, defaults filled in; the same arguments build the same worker."""
        return {**self._given, "config": self.config.copy()}

    def _require_open(self, what: str) -> None:
        """Raise `Closed` if the worker was stopped."""
        if self._closed:
            raise Closed(f"{what}() of worker {self.worker_index}, which was stopped; build another worker")

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """While the worker draws: from its own streams, if it is seeded."""
        if self._streams is None:
            yield
            return
        with self._streams.swapped():
            yield
