"""The host for a worker's sub-envs: a list of gymnasium envs, each of which may fail without harm to the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from swath.rollout.hosts.base import Transition
from swath.rollout.hosts.gymnasium import STEP, EnvListHost
from swath.rollout.spaces import Leaves


@runtime_checkable
class BegunAhead(Protocol):
    """An env whose step can be begun before it is waited for."""

    def begin(self, action: Any) -> None:
        """Begin the step of which `step` tells."""


class SubEnvHost(EnvListHost):
    """As its base, but an env that returns what cannot be used has failed, as one that raises has."""

    def step(self, action: Leaves) -> Transition:
        """Advance every env; those that live elsewhere step side by side."""
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

    def _leaves(self, observations: list[Any], failed: list[tuple[int, Exception]]) -> Leaves:
        try:
            return super()._leaves(observations, failed)
        except (ValueError, TypeError, KeyError, IndexError):
            known = {env for env, _ in failed}
            for env, observation in enumerate(observations):
                error = self._wrong_with(env, observation)
                if error is not None:
                    observations[env] = self._last[env]
                    if env not in known:
                        failed.append((env, error))
            return super()._leaves(observations, failed)

    def _wrong_with(self, env: int, observation: Any) -> Exception | None:
        try:
            self._require_fitting(observation, env, STEP)
        except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
            return error
        return None
