"""The envs of a worker as callbacks and users see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from swath.rollout.hosts.base import ArrayHost
from swath.rollout_workers.worker.env_making import shown


class EnvView:
    """All envs of a worker.

    Args:
        host: that steps them.
        spaces: of one sub-env, before preprocessing.
        stop: closes them.
    """

    def __init__(self, host: ArrayHost, spaces: tuple[Any, Any], stop: Callable[[], None]) -> None:
        self._host = host
        self.observation_space, self.action_space = spaces
        self.stop = stop
        self.num_envs = host.spec.num_envs

    @property
    def vector_env(self) -> EnvView:
        """What is stepped together: this view."""
        return self

    @property
    def envs(self) -> list[Any]:
        """The sub-envs."""
        return shown(self._host)

    def get_sub_environments(self) -> list[Any]:
        """The sub-envs."""
        return self.envs
