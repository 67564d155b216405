"""Envs that the driver has registered with gymnasium, made known to its workers in other processes.

    driver: registry ─▶ with_registry(build) ─▶ pickle ─▶ worker: registry updated ─▶ build()

Envs that the modules of a worker register when they are imported take precedence.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from swath.pickles import pickle_value


def with_registry(build: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that registers the envs of this process and then builds the worker's object."""
    by_entry_point, others, errors = dict[str, EnvSpec](), dict[str, bytes](), dict[str, str]()
    for env_id, spec in gym.registry.items():
        if isinstance(spec.entry_point, str) and not (spec.kwargs or spec.additional_wrappers):
            by_entry_point[env_id] = spec
        else:
            try:
                others[env_id] = pickle_value(spec)
            except TypeError as error:
                errors[env_id] = str(error)
    return partial(_register_and_build, build, pickle.dumps(by_entry_point), others, errors)


def _register_and_build(
    build: Callable[[], Any], by_entry_point: bytes, others: Mapping[str, bytes], errors: Mapping[str, str]
) -> Any:
    gym.registry.update(pickle.loads(by_entry_point))  # noqa: S301  our own driver wrote it
    missing = dict(errors)
    for env_id, data in others.items():
        try:
            gym.registry[env_id] = pickle.loads(data)  # noqa: S301  our own driver wrote it
        except Exception as error:  # noqa: BLE001  modules may be missing in this process, and perhaps not needed
            missing[env_id] = str(error)
    for env_id, reason in missing.items():
        gym.registry.setdefault(env_id, EnvSpec(env_id, partial(_refuse, env_id, reason)))
    return build()


def _refuse(env_id: str, reason: str, **_keywords: object) -> NoReturn:
    """Raise `TypeError`, in the place of an entry point that cannot be sent."""
    raise TypeError(
        f"the env {env_id!r} is registered in the driver, and its entry point cannot be sent to a worker: "
        f"{reason}; register it in the worker, by init_fn, or in a function that builds the env"
    )
