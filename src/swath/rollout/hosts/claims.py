"""Which service steps which env: an instance that was handed in belongs to one live service at a time."""

from __future__ import annotations

import sys
import weakref
from typing import Any, Protocol

from swath.rollout.hosts.sources import is_env_instance
from swath.rollout.hosts.torchrl import is_torchrl_env


class Service(Protocol):
    """What steps envs until it is closed."""

    @property
    def closed(self) -> bool:
        """Whether it is over."""


_steppers: dict[int, weakref.ref[Any]] = {}
"""By identity of the innermost env. Who steps an env keeps it alive, so that its identity is not given anew."""


def require_free(env: Any) -> None:
    """Check that no live service steps this instance, or one of this list; all else is free.

    Raises:
        ValueError: one does.
    """
    for instance in _instances(env):
        stepper = _steppers.get(id(_innermost(instance)))
        service = None if stepper is None else stepper()
        if service is not None and not service.closed:
            raise ValueError(
                f"{instance} is stepped by another collector or evaluator that is not shut down; shut that down "
                "first, or pass an env of its own, an id or a callable"
            )


def claim(env: Any, service: Service) -> None:
    """From now on this service steps the instance, or those of the list, until it is closed or gone."""
    for instance in _instances(env):
        _steppers[id(_innermost(instance))] = weakref.ref(service)


def _instances(env: Any) -> list[Any]:
    entries = env if isinstance(env, list | tuple) else [env]
    return [entry for entry in entries if is_env_instance(entry)]


def _innermost(env: Any) -> Any:
    if not is_torchrl_env(env):
        return getattr(env, "unwrapped", env)
    while isinstance(env, sys.modules["torchrl.envs"].TransformedEnv):
        env = env.base_env
    return env
