"""Where the workers of a set live, and what that place is asked for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

from swath.options import Restarts, Survival
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.workers.base import Backend
from swath.workers.create import backend

Place: TypeAlias = Literal["ray", "process", "inline"]

LONGEST_DELAY_S = 30.0
PRELOAD = (
    "swath.rollout_workers.worker_set.recipe",
    "swath.rollout_workers.worker.worker",
    "swath.rollout_workers.policies.ppo",
)
"""What most workers need."""


def place(name: str | None, config: AlgorithmConfig) -> Place:
    """The place of that name; for None Ray, if it is up in this process, else processes.

    Raises:
        ValueError: there is no such place, or it cannot give what the config asks for.
    """
    ray: Any = sys.modules.get("ray")
    if name is None:
        name = "ray" if ray is not None and ray.is_initialized() else "process"
    require_place(name)
    if name != "ray" and config.custom_resources_per_env_runner:
        raise ValueError(
            f"custom_resources_per_env_runner={config.custom_resources_per_env_runner} are found on Ray only, not with "
            f"backend={name!r}; leave them out, or use backend='ray'"
        )
    found: Place = name  # type: ignore[assignment]  # looked up above
    return found


def require_place(name: str | None) -> None:
    """Raise `ValueError` if there is no place of that name; None stands for one."""
    if name is not None and name not in get_args(Place):
        raise ValueError(f"backend={name!r} must be one of {', '.join(map(repr, get_args(Place)))}, or None")


def open_place(name: Place) -> Backend:
    """A backend.

    Raises:
        RuntimeError: it needs a package that is not installed.
    """
    try:
        return backend(name, preload=PRELOAD)
    except ImportError as error:
        raise RuntimeError(f"backend={name!r} cannot be used: {error}") from error


def resources(name: Place, config: AlgorithmConfig) -> Mapping[str, Any]:
    """What each worker asks of its place."""
    if name != "ray":
        return {}
    return {
        "num_cpus": config.num_cpus_per_env_runner,
        "num_gpus": config.num_gpus_per_env_runner,
        "resources": dict(config.custom_resources_per_env_runner),
    }


def survival(config: AlgorithmConfig, name: Place) -> Survival:
    """What is done about workers that die or hang; those inline cannot be ended while they are busy."""
    delay = config.delay_between_env_runner_restarts_s
    restarts = Restarts(
        max_per_worker=config.max_num_env_runner_restarts if config.restart_failed_env_runners else 0,
        backoff_s=delay,
        backoff_max_s=max(delay, LONGEST_DELAY_S),
    )
    return Survival(
        restarts,
        min_workers=1,
        fragment_timeout_s=None if name == "inline" else config.env_runner_hang_timeout_s,
        placement_timeout_s=config.env_runner_restore_timeout_s,
        names={
            "fragment_timeout_s": "env_runner_hang_timeout_s",
            "placement_timeout_s": "env_runner_restore_timeout_s",
        },
    )
