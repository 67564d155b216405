"""Lives of workers as data: `{0: [[Fault("kill", step=3)], []]}` is a worker that dies at step 3 and then is fine.

Lives(directory, script) ─▶ sources(W) ─▶ one env source per worker ─▶ built in life 0, 1, 2, … with that life's faults
            └── one empty file for every env that was built, by whatever process
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium as gym

from swath.testing.counting import Counting, CountingEnv
from swath.testing.faults import EnvBroke, Fault, Faults, FaultyEnv, Mishaps

LifeFaults: TypeAlias = Sequence[Fault] | Faults
"""What goes wrong in one life: in its first env, or by env."""


@dataclass(frozen=True)
class Lives:
    """What goes wrong in the lives of workers, wherever they live on this machine.

    Which life it is follows from how many envs the worker's source has built so far. Nothing else is remembered, so
    that a script works across processes and says the same however a life ended; but for a life that was ended from
    outside while it built its envs.

    Attributes:
        directory: an empty one.
        script: by worker, by life; lives beyond the script are fine.
        num_envs: how many envs each life builds.
        counting: what its counting envs are like; worker `w` has the numbers from `w * num_envs`, in every life.
        make_env: builds an env of another kind, which is wrapped in a `FaultyEnv`.
    """

    directory: Path
    script: Mapping[int, Sequence[LifeFaults]]
    num_envs: int = 1
    counting: Counting | None = None
    make_env: Callable[[], gym.Env[Any, Any]] | None = None

    def __post_init__(self) -> None:
        for worker, lives in self.script.items():
            for life, faults in enumerate(lives):
                unknown = sorted(env for env in _by_env(faults) if not 0 <= env < self.num_envs)
                if unknown:
                    raise ValueError(f"worker {worker}, life {life}: no envs {unknown}; num_envs={self.num_envs}")

    def sources(self, n_workers: int) -> list[LifeSource]:
        """One env source per worker.

        Raises:
            ValueError: the script is of other workers, too.
        """
        others = sorted(set(self.script) - set(range(n_workers)))
        if others:
            raise ValueError(f"the script is of workers {others}, too; there are {n_workers}")
        return [LifeSource(self, worker) for worker in range(n_workers)]

    def begun(self, worker: int) -> int:
        """How many lives of a worker have begun to build their envs."""
        return -(-len(list(self.directory.glob(f"worker{worker}-*"))) // self.num_envs)


class LifeSource:
    """Builds the envs of one worker, life after life.

    Args:
        lives: what goes wrong.
        worker: whose envs.
    """

    def __init__(self, lives: Lives, worker: int) -> None:
        self._lives = lives
        self._worker = worker
        self._home = os.getpid()

    def __call__(self) -> gym.Env[Any, Any] | None:
        """The next env of this life, or the first of the next life."""
        lives, worker = self._lives, self._worker
        life, env = divmod(next(self._claims()), lives.num_envs)
        script = lives.script.get(worker, ())
        faults = _by_env(script[life]).get(env, ()) if life < len(script) else ()
        mishaps = Mishaps(faults, self._home)
        if mishaps.due("raise_at_build"):
            for _ in zip(range(env + 1, lives.num_envs), self._claims(), strict=False):
                pass  # the envs that this life will not build
            raise EnvBroke(f"env {env} of worker {worker} could not be built")
        if mishaps.due("build_nothing"):
            return None
        number = worker * lives.num_envs + env
        if lives.make_env is not None:
            return FaultyEnv(lives.make_env(), mishaps, number)
        return CountingEnv(number, lives.counting, mishaps)

    def _claims(self) -> Iterator[int]:
        """Numbers that nobody has had before: each is a file."""
        for number in count():
            try:
                (self._lives.directory / f"worker{self._worker}-{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            yield number


def _by_env(faults: LifeFaults) -> Faults:
    return faults if isinstance(faults, Mapping) else {0: faults}
