"""What a worker is built with."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from swath.options import count
from swath.rollout_workers.config import AlgorithmConfig
from swath.rollout_workers.env_context import EnvContext


@dataclass(frozen=True)
class Arguments:
    """The arguments of a worker's constructor, as they were given; `config` and `num_workers` are filled in.

    Attributes:
        env_creator: makes an env of an `EnvContext`.
        validate_env: refuses envs.
        config: a copy of what was given.
        worker_index: 0 is the local worker.
        num_workers: remote workers of the set.
        recreated_worker: it replaces a lost one.
        log_dir: where it may write.
        spaces: by policy id.
        default_policy_class: of policies without one.
        dataset_shards: rows in the place of envs.
        tf_session_creator: nothing.
    """

    env_creator: Callable[[EnvContext], Any] | None
    validate_env: Callable[[Any, EnvContext], Any] | None
    config: AlgorithmConfig
    worker_index: int
    num_workers: int
    recreated_worker: bool
    log_dir: str | None
    spaces: Mapping[str, Any] | None
    default_policy_class: type | None
    dataset_shards: Any
    tf_session_creator: Any

    def __post_init__(self) -> None:
        count("worker_index", self.worker_index, least=0)
        count("num_workers", self.num_workers, least=0)
        if self.tf_session_creator not in (-1, None):
            raise ValueError(
                f"tf_session_creator={self.tf_session_creator!r} is not served: policies are torch only; leave it out"
            )

    def as_given(self) -> dict[str, Any]:
        """The arguments by name; the config is copied."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**given, "config": self.config.copy()}

    @property
    def context(self) -> EnvContext:
        """What envs are told, from which the context of each is copied."""
        config = self.config
        return EnvContext(
            config.env_config,
            self.worker_index,
            num_workers=self.num_workers,
            recreated_worker=self.recreated_worker,
        )

    @property
    def wants_env(self) -> bool:
        """Whether this worker is to have envs: worker 0 of a set may do without."""
        config = self.config
        alone = self.worker_index > 0 or self.num_workers == 0
        return self.env_creator is not None and (
            alone or config.create_local_env_runner or config.create_env_on_local_worker
        )

    def set_environment(self) -> None:
        """Put the variables of the config into this process's environment, where they stay."""
        config = self.config
        variables = (
            config.extra_python_environs_for_worker if self.worker_index else config.extra_python_environs_for_driver
        )
        os.environ.update({str(name): str(value) for name, value in variables.items()})


def config_of(given: Any) -> AlgorithmConfig:
    """A config of one's own, thawed and checked.

    Raises:
        TypeError: it is neither a config nor a dict.
        ValueError: settings that contradict each other.
    """
    config = thawed(given)
    config.validate()
    return config


def thawed(given: Any) -> AlgorithmConfig:
    """A config of one's own, to be changed before it is checked.

    Raises:
        TypeError: it is neither a config nor a dict.
    """
    if given is None:
        config = AlgorithmConfig()
    elif isinstance(given, AlgorithmConfig):
        config = given.copy(copy_frozen=False)
    elif isinstance(given, Mapping):
        config = AlgorithmConfig.from_dict(given)
    else:
        raise TypeError(f"config={given!r} is of type {type(given).__name__}; give an AlgorithmConfig, a dict, or None")
    return config
