"""The arguments of `RolloutWorker` as one frozen value, which checks itself; what each means stands there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from swath.options import count
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.env_context import EnvContext


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """What `RolloutWorker` takes.

    Raises:
        ValueError: a session creator, or an index that is none.
    """

    env_creator: Callable[[EnvContext], Any] | None = None
    validate_env: Callable[[Any, EnvContext], Any] | None = None
    config: AlgorithmConfig | Mapping[str, Any] | None = None
    worker_index: int = 0
    num_workers: int | None = None
    recreated_worker: bool = False
    log_dir: str | None = None
    spaces: Mapping[str, Any] | None = None
    default_policy_class: type | None = None
    dataset_shards: Any = None
    tf_session_creator: Any = -1

    def __post_init__(self) -> None:
        count("worker_index", self.worker_index, least=0)
        if self.tf_session_creator not in (-1, None):
            raise ValueError(
                f"tf_session_creator={self.tf_session_creator!r} is not served: policies are torch only; leave it out"
            )

    def shard(self, config: AlgorithmConfig) -> Any:
        """The worker's shard of the dataset; None if rows come from envs.

        Raises:
            ValueError: shards that nobody reads, or none where there must be one.
        """
        shards, index = self.dataset_shards, self.worker_index
        if config.input_ != "dataset":
            if shards is not None:
                raise ValueError(f"dataset_shards is given, but input_={config.input_!r}; set input_='dataset'")
            return None
        if shards is None or index >= len(shards):
            n = 0 if shards is None else len(shards)
            raise ValueError(f"input_='dataset' needs dataset_shards[{index}]; there are {n} shards")
        return shards[index]
