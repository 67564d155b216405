"""Lives of workers as data: `{0: [[Fault("kill", step=3)], []]}` is a worker that dies at step 3 and then is fine.

Lives(directory, script) ─▶ sources(W) ─▶ one env source per worker ─▶ built in life 0, 1, 2, … with that life's faults
            └── one empty file for every env that was built, by whatever process
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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

    def sources(self, n_workers: int) -> list[Callable[[], gym.Env[Any, Any] | None]]:
        """One env source per worker.

        Raises:
            ValueError: the script is of other workers, too.
        """
        if not self.script.keys() <= set(range(n_workers)):
            raise ValueError(f"the script is of workers {sorted(self.script)}; there are {n_workers}")
        return [partial(self._made, worker, os.getpid()) for worker in range(n_workers)]

    def begun(self, worker: int) -> int:
        """How many lives of a worker have begun to build their envs."""
        return -(-self._built(worker) // self.num_envs)

    def _made(self, worker: int, home: int) -> gym.Env[Any, Any] | None:
        """The next env of a worker's life, or the first of its next life."""
        life, env = divmod(self._built(worker), self.num_envs)
        script, number = self.script.get(worker, ()), worker * self.num_envs + env
        faults = script[life] if life < len(script) else ()
        mishaps = Mishaps((faults if isinstance(faults, Mapping) else {0: faults}).get(env, ()), home)
        self._note(worker)
        try:
            if not mishaps.building(number):
                return None
        except EnvBroke:
            for _ in range(env + 1, self.num_envs):
                self._note(worker)  # the envs that this life will not build
            raise
        if self.make_env is not None:
            return FaultyEnv(self.make_env(), mishaps, number)
        return CountingEnv(number, self.counting, mishaps)

    def _built(self, worker: int) -> int:
        return len(list(self.directory.glob(f"worker{worker}-*")))

    def _note(self, worker: int) -> None:
        (self.directory / f"worker{worker}-{self._built(worker)}").touch(exist_ok=False)
