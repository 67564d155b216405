"""What is asked of everything that collects from envs of its own, and what creators of its envs are given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import copy, deepcopy
from typing import Any


class EnvRunner(ABC):
    """Collects from envs of its own."""

    @abstractmethod
    def sample(self, *, explore: bool | None = None, force_reset: bool = False) -> Any:
        """Collect what a call hands out."""

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """What it takes to go on elsewhere."""

    @abstractmethod
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` gave."""

    @abstractmethod
    def get_spaces(self) -> dict[str, Any]:
        """Observation and action spaces by policy id, and of the env."""

    @abstractmethod
    def assert_healthy(self) -> None:
        """Raise `AssertionError` if it cannot work."""

    @abstractmethod
    def stop(self) -> None:
        """Let everything go."""

    def apply(self, func: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Any:
        """`func(self, …)`, or the method of that name called with the arguments."""
        if isinstance(func, str):
            return getattr(self, func)(*args, **kwargs)
        return func(self, *args, **kwargs)

    def ping(self) -> str:
        """`"pong"`, if it is up and well; may be called beside a running call.

        Raises:
            AssertionError: it cannot work, as `assert_healthy` says: a process that answers is not enough.
        """
        self.assert_healthy()
        return "pong"


class EnvContext(dict[str, Any]):
    """The env config, with what else an env may want to know as attributes.

    An empty context is falsy, as any dict: ask `is None` where a missing one is meant.

    Attributes:
        worker_index: of the worker that makes the env; 0 is the local one.
        vector_index: of the env within the worker.
        remote: whether each env of the worker lives in a place of its own.
        num_workers: how many remote workers the set has; None if nobody said.
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
        """A context with the same values, not copied, and the same attributes; a dict's own would be a plain dict."""
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
        """A context with a deep copy of the content; what is None stays as it is."""
        given = (worker_index, vector_index, remote, num_workers, recreated_worker)
        own = (self.worker_index, self.vector_index, self.remote, self.num_workers, self.recreated_worker)
        kept: list[Any] = [old if new is None else new for new, old in zip(given, own, strict=True)]
        return EnvContext(deepcopy(dict(self if env_config is None else env_config)), *kept)

    def set_defaults(self, defaults: Mapping[str, Any]) -> None:
        """Add the entries whose keys are not here yet."""
        for key, value in defaults.items():
            self.setdefault(key, value)

    def __str__(self) -> str:
        content = "".join(f"{key!r}: {value!r}, " for key, value in self.items())
        where = f"worker={self.worker_index}/{self.num_workers}, vector_idx={self.vector_index}, remote={self.remote}"
        return f"{{{content}{where}}}"
