"""The arguments of `WorkerSet` as one frozen value, which checks itself; what each means stands there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.config.envs import creator_of

Place = Literal["ray", "process", "inline"]


@dataclass(frozen=True, kw_only=True)
class SetOptions:
    """What `WorkerSet` takes.

    Raises:
        ValueError: there is nothing to make envs with, no such backend, or two names of one thing differ.
    """

    env_creator: Callable[..., Any] | None = None
    validate_env: Callable[..., Any] | None = None
    default_policy_class: type | None = None
    config: AlgorithmConfig | Mapping[str, Any] | None = None
    num_workers: int | None = None
    backend: str | None = None
    local_worker: bool = True
    logdir: str | None = None
    num_env_runners: int | None = None
    local_env_runner: bool | None = None
    _setup: bool = True

    def __post_init__(self) -> None:
        if self.backend is not None and self.backend not in get_args(Place):
            places = ", ".join(map(repr, get_args(Place)))
            raise ValueError(f"backend={self.backend!r} must be one of {places}, or None")
        if self.local_env_runner and not self.local_worker:
            either("local_worker", self.local_worker, "local_env_runner", self.local_env_runner)
        if self.creator is None and self._setup:
            raise ValueError(
                "there is nothing to make envs with: give env_creator, or a config with environment(env=…)"
            )

    @cached_property
    def settings(self) -> AlgorithmConfig:
        """The set's own config."""
        own = AlgorithmConfig.of(self.config)
        number = either("num_workers", self.num_workers, "num_env_runners", self.num_env_runners)
        if number is not None:
            own.env_runners(num_env_runners=number)
        own.validate()
        return own

    @property
    def builds(self) -> bool:
        """Whether workers are built at once."""
        return self._setup

    @property
    def creator(self) -> Callable[..., Any] | None:
        """What makes envs."""
        return self.env_creator or (None if self.settings.env is None else creator_of(self.settings.env))

    @property
    def wants_local(self) -> bool:
        """Whether worker 0 is built; always where there are no others."""
        wanted = self.local_worker if self.local_env_runner is None else self.local_env_runner
        return wanted or not self.settings.num_env_runners


def either(name: str, value: Any, other: str, also: Any) -> Any:
    """What is given by either of two names.

    Raises:
        ValueError: two values.
    """
    if None not in (value, also) and value != also:
        raise ValueError(f"{name}={value!r} and {other}={also!r} are two names of one thing; give one of them")
    return also if value is None else value
