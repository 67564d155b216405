"""The host for a worker's sub-envs: a list of gymnasium envs, some of which may live elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from swath.rollout.hosts.base import Transition
from swath.rollout.hosts.gymnasium import EnvListHost
from swath.rollout.spaces import Leaves


@runtime_checkable
class BegunAhead(Protocol):
    """An env whose step can be begun before it is waited for."""

    def begin(self, action: Any) -> None:
        """Begin the step of which `step` tells."""


class SubEnvHost(EnvListHost):
    """As its base; envs that live elsewhere step side by side."""

    def step(self, action: Leaves) -> Transition:
        """Advance every env; the steps of those that live elsewhere are begun first."""
        if self._begin_steps:
            for begin, own in zip(self._begin_steps, self._split(action), strict=True):
                begin(own)
        return super().step(action)

    def _install(self) -> None:
        super()._install()
        self._look_ahead()

    def renew(self, env: int, make: Callable[[], Any]) -> None:
        """Close this env and put what `make` builds in its place."""
        super().renew(env, make)
        self._look_ahead()

    def _look_ahead(self) -> None:
        self._begin_steps = [env.begin for env in self._envs if isinstance(env, BegunAhead)]
