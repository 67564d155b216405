"""The envs of a worker as callbacks and users see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from swath.rollout.hosts.base import ArrayHost
from swath.rollout_workers.worker.env_making import shown


class VectorView:
    """What is stepped together.

    Args:
        host: that steps it.
    """

    def __init__(self, host: ArrayHost) -> None:
        self._host = host

    @property
    def envs(self) -> list[Any]:
        """The sub-envs."""
        return shown(self._host)

    @property
    def num_envs(self) -> int:
        """How many are stepped together."""
        return self._host.spec.num_envs

    def get_sub_environments(self) -> list[Any]:
        """The sub-envs."""
        return self.envs


class EnvView:
    """All envs of a worker.

    Args:
        host: that steps them.
        spaces: of one sub-env.
        stop: closes them.
    """

    def __init__(self, host: ArrayHost, spaces: tuple[Any, Any], stop: Callable[[], None]) -> None:
        self.vector_env = VectorView(host)
        self._spaces = spaces
        self._stop = stop

    @property
    def num_envs(self) -> int:
        """How many there are."""
        return self.vector_env.num_envs

    @property
    def observation_space(self) -> Any:
        """Of one sub-env, before preprocessing."""
        return self._spaces[0]

    @property
    def action_space(self) -> Any:
        """Of one sub-env."""
        return self._spaces[1]

    def get_sub_environments(self) -> list[Any]:
        """The sub-envs."""
        return self.vector_env.envs

    def stop(self) -> None:
        """Close the envs."""
        self._stop()
