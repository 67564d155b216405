"""What a worker has to do with the process and the machine that it is in: its seeds, its log, its address.

Worker 0 in training and in its first life gives its envs the root seed and those after it. All others come from
`swath.seeds`, evaluation and training apart, and none of them is one of worker 0's.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from swath.rollout.seeding import PrivateStreams
from swath.seeds import Role, derive, derive_named

_LOGGER = logging.getLogger("swath")
_FORMAT = "%(asctime)s %(levelname)s %(message)s"

_PINNED = 2**16
"""How many seeds from the root on may be those of worker 0's envs."""

_EVALUATION = 2**15
"""The first env number of workers that evaluate."""

_MOST_LIVES = 2**5
_MOST_RENEWALS = 2**6
_ELSEWHERE = _MOST_LIVES * _MOST_RENEWALS


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
    def own(self) -> int:
        """The worker's own seed."""
        return self.root if self._is_pinned else self._of("global", self.worker)

    def first(self, num_envs: int) -> list[int]:
        """Of the first resets of its envs."""
        if self._is_pinned:
            return [self.root + env for env in range(num_envs)]
        return [self._of("env", self.worker * num_envs + env) for env in range(num_envs)]

    def renewed(self, env: int, num_envs: int, time: int) -> int:
        """Of the first reset of an env that was made anew for the `time`-th time, from 1."""
        rounds, turn = divmod(time, _MOST_RENEWALS)
        if rounds:
            return replace(self, root=derive_named(self.root, f"renewals from {rounds}")).renewed(env, num_envs, turn)
        return self._of("env", self.worker * num_envs + env, turn)

    def streams(self, device: torch.device) -> PrivateStreams:
        """Random streams for what policies, which are on this device, and the worker draw."""
        return PrivateStreams(self._of("policy", self.worker), device)

    @property
    def _is_pinned(self) -> bool:
        return self.worker == 0 and self.life == 0 and not self.in_evaluation

    def _of(self, role: Role, number: int, time: int = 0) -> int:
        if number >= _EVALUATION:
            raise ValueError(f"sub-env number {number} of all workers has no seed; {_EVALUATION:,} have one")
        rounds, life = divmod(self.life, _MOST_LIVES)
        root = derive_named(self.root, f"lives from {rounds}") if rounds else self.root
        env, index = number + _EVALUATION * self.in_evaluation, life + _MOST_LIVES * time
        seed = derive(root, role, env, index)
        if self.root <= seed < self.root + _PINNED:
            seed = derive(root, role, env, index + _ELSEWHERE)
        return seed


class WorkerLog:
    """The library's log at the level of the config, and in a file if there is a directory, until it is closed.

    Args:
        log_dir: where the file is; made if it is missing. None: nothing is written.
        name: of the file.
        level: of the logger; "WARN", the default of the config, leaves it as it is.
    """

    def __init__(self, log_dir: str | None, name: str, level: str) -> None:
        self._level, self._level_before = level, _LOGGER.level
        self._handler: logging.Handler = logging.NullHandler()
        if level != "WARN":
            _LOGGER.setLevel(level)
        if log_dir is not None:
            Path(log_dir).mkdir(parents=True, exist_ok=True)
            self._handler = logging.FileHandler(Path(log_dir) / name, encoding="utf-8", delay=True)
            self._handler.setFormatter(logging.Formatter(_FORMAT))
            _LOGGER.addHandler(self._handler)

    def close(self) -> None:
        """Write no more; the logger has the level that it had, unless somebody else has set another one."""
        _LOGGER.removeHandler(self._handler)
        self._handler.close()
        if self._level != "WARN" and _LOGGER.level == logging.getLevelName(self._level):
            _LOGGER.setLevel(self._level_before)
