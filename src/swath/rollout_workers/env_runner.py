"""What is asked of everything that collects from envs of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
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
