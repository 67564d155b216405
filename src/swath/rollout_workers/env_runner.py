"""The base of workers that own the envs they collect from; creators of envs by name, and the context that they get."""

from __future__ import annotations

import platform
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import copy, deepcopy
from functools import partial
from typing import Any

import gymnasium as gym

_ROUTED = ("192.0.2.1", 9)
"""An address for documentation: nothing is sent there, the system only names the interface that would be used."""


_creators: dict[str, Callable[[Any], Any]] = {}


def register_env(name: str, creator: Callable[[Any], Any]) -> None:
    """Register `creator(EnvContext) -> env` under a name, in the place of an earlier one.

    The name is looked up in the process that builds workers, and the creator travels to them.

    Raises:
        ValueError: the name is no string, or the creator cannot be called.
    """
    if not (isinstance(name, str) and name and callable(creator)):
        raise ValueError(f"name={name!r} must be a string that is not empty, creator={creator!r} must be callable")
    _creators[name] = creator


def creator_of(env: str | Callable[..., Any]) -> Callable[[Any], Any]:
    """Return the function that makes an env of an `EnvContext`, by name or gymnasium id unless it is one."""
    if not isinstance(env, str):
        return env
    return _creators.get(env) or partial(_make_by_id, env)


def _make_by_id(env_id: str, context: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """Make a gymnasium env, with the context's content as keywords."""
    return gym.make(env_id, **context)


class EnvRunner(ABC):
    """Collects from the envs that it owns."""

    @abstractmethod
    def sample(self, *, explore: bool | None = None, force_reset: bool = False) -> Any:
        """Collect a batch."""

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Return the state from which another runner can continue."""

    @abstractmethod
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""

    @abstractmethod
    def get_spaces(self) -> dict[str, Any]:
        """Return observation and action spaces by policy id, and of the env."""

    @abstractmethod
    def assert_healthy(self) -> None:
        """Raise `AssertionError` if it cannot work."""

    @abstractmethod
    def stop(self) -> None:
        """Release all resources."""

    def apply(self, func: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Any:
        """Return `func(self, …)`, or the result of the method of that name."""
        if isinstance(func, str):
            return getattr(self, func)(*args, **kwargs)
        return func(self, *args, **kwargs)

    def ping(self) -> str:
        """Return `"pong"` if the runner is healthy; another thread may call this during a running call.

        Raises:
            AssertionError: it cannot work, as `assert_healthy` says: a process that answers is not enough.
        """
        self.assert_healthy()
        return "pong"

    def get_host(self) -> str:
        """Return the name of the machine."""
        return platform.node()

    def get_node_ip(self) -> str:
        """Return the node's address: Ray's if it runs here, else the outside interface's, else the loopback's."""
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
        """Return an IPv4 port that is free at the moment."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])


class EnvContext(dict[str, Any]):
    """The env config, with facts about the worker as attributes.

    An empty context is falsy, as any dict: write `is None` to test for a missing one.

    Attributes:
        worker_index: of the worker that makes the env; 0 is the local one.
        vector_index: of the env within the worker.
        remote: whether each env of the worker lives in its own process.
        num_workers: how many remote workers the set has; None if that is unknown.
        recreated_worker: whether the worker replaces one that was lost.
    """

    def __init__(
        self,
        env_config: Mapping[str, Any],
        worker_index: int,
        vector_index: int = 0,
        remote: bool = False,
        num_workers: int | None = None,
        recreated_worker: bool = False,
    ) -> None:
        super().__init__(env_config)
        self.worker_index = worker_index
        self.vector_index = vector_index
        self.remote = remote
        self.num_workers = num_workers
        self.recreated_worker = recreated_worker

    def copy(self) -> EnvContext:
        """Return a context with the same values, not copied, and the same attributes; `dict.copy` loses these."""
        return copy(self)

    def copy_with_overrides(
        self,
        env_config: Mapping[str, Any] | None = None,
        worker_index: int | None = None,
        vector_index: int | None = None,
        remote: bool | None = None,
        num_workers: int | None = None,
        recreated_worker: bool | None = None,
    ) -> EnvContext:
        """Return a context with a deep copy of the content; attributes that are None stay unchanged."""
        changes: dict[str, Any] = {"worker_index": worker_index, "vector_index": vector_index, "remote": remote}
        changes |= {"num_workers": num_workers, "recreated_worker": recreated_worker}
        attributes = {name: value if changes[name] is None else changes[name] for name, value in vars(self).items()}
        return EnvContext(deepcopy(dict(self if env_config is None else env_config)), **attributes)

    def set_defaults(self, defaults: Mapping[str, Any]) -> None:
        """Add the entries whose keys are missing."""
        for key, value in defaults.items():
            self.setdefault(key, value)

    def __str__(self) -> str:
        content = "".join(f"{key!r}: {value!r}, " for key, value in self.items())
        place = f"worker={self.worker_index}/{self.num_workers}, vector_idx={self.vector_index}, remote={self.remote}"
        return f"{{{content}{place}}}"
