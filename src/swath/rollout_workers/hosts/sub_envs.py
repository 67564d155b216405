"""The host for a worker's sub-envs: a list of gymnasium envs, each of which may fail without harm to the others."""

from __future__ import annotations

from typing import Any

from swath.rollout.hosts.base import EnvRaised
from swath.rollout.hosts.gymnasium import Arrays, EnvListHost


class SubEnvHost(EnvListHost):
    """As its base, but an env that returns what cannot be used has failed, as one that raises has."""

    def _arrays(self, observations: list[Any], rewards: list[Any], failed: list[tuple[int, Exception]]) -> Arrays:
        try:
            return super()._arrays(observations, rewards, failed)
        except (EnvRaised, ValueError, TypeError, KeyError, IndexError):
            for env in range(len(observations)):
                error = self._wrong_with(observations[env], rewards[env])
                if error is not None:
                    failed.append((env, error))
                    observations[env], rewards[env] = self._last[env], 0.0
            return super()._arrays(observations, rewards, failed)

    def _wrong_with(self, observation: Any, reward: Any) -> Exception | None:
        try:
            super()._arrays([observation], [reward], [])
        except EnvRaised as raised:
            return raised.cause
        except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
            return error
        return None
