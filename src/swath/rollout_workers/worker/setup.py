"""Start-up of a rollout worker: its arguments, seeds and log, and rows of a dataset in place of envs.

Worker 0 in training and in its first life gives its envs the root seed and those after it. All other seeds come from
`swath.seeds`, evaluation and training apart, and none of them equals a seed of worker 0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from swath.options import count
from swath.rollout.seeding import PrivateStreams
from swath.rollout_workers.batches.sample_batch import SampleBatch, concat
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.env_runner import EnvContext
from swath.seeds import Role, derive, derive_named

_LOGGER = logging.getLogger("swath")
_FORMAT = "%(asctime)s %(levelname)s %(message)s"

_ROOT_SEEDS = 2**16
"""Number of seeds from the root on that are reserved for worker 0's envs."""

_EVALUATION = 2**15
"""The first env number of workers that evaluate."""

_MOST_LIVES = 2**5
_MOST_REBUILDS = 2**6


@dataclass(frozen=True)
class Seeds:
    """The seeds of one worker in one life.

    Attributes:
        root: the user's seed.
        worker: the worker's index.
        life: which of its lives, from 0.
        in_evaluation: whether it evaluates.
    """

    root: int
    worker: int = 0
    life: int = 0
    in_evaluation: bool = False

    @property
    def worker_seed(self) -> int:
        """Return the seed that the worker shows as its own."""
        return self.root if self._uses_root else self._derive("global", self.worker)

    def env_seeds(self, num_envs: int) -> list[int]:
        """Return the seeds of the first resets of all envs."""
        if self._uses_root:
            return [self.root + env for env in range(num_envs)]
        return [self._derive("env", self.worker * num_envs + env) for env in range(num_envs)]

    def rebuilt_env_seed(self, env: int, num_envs: int, rebuild: int) -> int:
        """Return the seed of an env's first reset after its `rebuild`-th rebuild, counted from 1."""
        return self._derive("env", self.worker * num_envs + env, rebuild)

    def streams(self, device: torch.device) -> PrivateStreams:
        """Return the random streams of the worker and of its policies, which are on this device."""
        return PrivateStreams(self._derive("policy", self.worker), device)

    @property
    def _uses_root(self) -> bool:
        return self.worker == 0 and self.life == 0 and not self.in_evaluation

    def _derive(self, role: Role, number: int, rebuild: int = 0) -> int:
        if number >= _EVALUATION:
            raise ValueError(f"sub-env number {number} of all workers has no seed; {_EVALUATION:,} have one")
        (life_round, life), (rebuild_round, turn) = divmod(self.life, _MOST_LIVES), divmod(rebuild, _MOST_REBUILDS)
        root = self.root
        if life_round or rebuild_round:
            root = derive_named(root, f"round {life_round} of lives, {rebuild_round} of renewals")
        env, index = number + _EVALUATION * self.in_evaluation, life + _MOST_LIVES * turn
        seed = derive(root, role, env, index)
        if self.root <= seed < self.root + _ROOT_SEEDS:
            seed = derive(root, role, env, index + _MOST_LIVES * _MOST_REBUILDS)
        return seed


class WorkerLog:
    """The library's log at the level of the config, and in a file if there is a directory, until it is closed.

    Args:
        log_dir: where the file is; created if it is missing. None: nothing is written.
        name: of the file.
        level: of the logger; "WARN", the default of the config, leaves it unchanged.
    """

    def __init__(self, log_dir: str | None, name: str, level: str) -> None:
        self._level, self._previous_level = level, _LOGGER.level
        self._handler: logging.Handler = logging.NullHandler()
        if level != "WARN":
            _LOGGER.setLevel(level)
        if log_dir is not None:
            Path(log_dir).mkdir(parents=True, exist_ok=True)
            self._handler = logging.FileHandler(Path(log_dir) / name, encoding="utf-8", delay=True)
            self._handler.setFormatter(logging.Formatter(_FORMAT))
            _LOGGER.addHandler(self._handler)

    def close(self) -> None:
        """Close the file, and restore the logger's level unless other code has changed it since."""
        _LOGGER.removeHandler(self._handler)
        self._handler.close()
        if self._level != "WARN" and _LOGGER.level == logging.getLevelName(self._level):
            _LOGGER.setLevel(self._previous_level)


class DatasetReader:
    """Reads the rows of a shard in an endless cycle.

    Args:
        shard: an iterable of `SampleBatch` or dicts of columns; or an object with `iter_batches`, as Ray's datasets.
    """

    def __init__(self, shard: Any) -> None:
        self._shard, self._unread = shard, SampleBatch()
        self._parts: Iterator[SampleBatch] = iter(())

    def next(self, n_rows: int) -> SampleBatch:
        """Return the next `n_rows` rows.

        Raises:
            ValueError: the shard has no rows.
        """
        is_new_pass = False
        while self._unread.count < n_rows:
            part = next(self._parts, None)
            if part is None and is_new_pass:
                raise ValueError(f"the dataset shard {self._shard!r} has no rows")
            if part is None:
                self._parts, is_new_pass = self._read(n_rows), True
            elif part.count:
                self._unread, is_new_pass = concat([self._unread, part]), False
        rows, self._unread = self._unread[:n_rows].copy(), self._unread[n_rows:]
        return rows

    def _read(self, n_rows: int) -> Iterator[SampleBatch]:
        parts = self._shard
        if hasattr(parts, "iter_batches"):
            parts = parts.iter_batches(batch_size=n_rows, batch_format="numpy")
        return (part if isinstance(part, SampleBatch) else SampleBatch(part) for part in parts)


@dataclass(frozen=True, kw_only=True)
class RolloutOptions:
    """The arguments of `RolloutWorker`, which describes them.

    Raises:
        ValueError: a session creator, or a negative index.
    """

    env_creator: Callable[[EnvContext], Any] | None = None
    validate_env: Callable[[Any, EnvContext], Any] | None = None
    config: AlgorithmConfig | Mapping[str, Any] | None = None
    worker_index: int = 0
    num_workers: int | None = None
    recreated_worker: int = False
    log_dir: str | None = None
    spaces: Mapping[str, Any] | None = None
    default_policy_class: type | None = None
    dataset_shards: Any = None
    tf_session_creator: Any = -1

    def __post_init__(self) -> None:
        count("worker_index", self.worker_index, minimum=0)
        if self.tf_session_creator not in (-1, None):
            raise ValueError(f"tf_session_creator={self.tf_session_creator!r} is not served: policies are torch only")

    def shard(self, config: AlgorithmConfig) -> Any:
        """Return the worker's shard of the dataset; None if rows come from envs.

        Raises:
            ValueError: shards without `input_="dataset"`, or no shard for this worker with it.
        """
        shards, index = self.dataset_shards, self.worker_index
        if (config.input_ == "dataset") != (shards is not None and index < len(shards)):
            n = "none" if shards is None else len(shards)
            raise ValueError(f"input_={config.input_!r}: 'dataset' reads dataset_shards[{index}]; there are {n} shards")
        return None if shards is None else shards[index]
