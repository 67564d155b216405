"""How the workers of a set are built, each time anew: held by the set, sent with each start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.worker_set.resident import Resident, Stacks
from swath.workers.base import Job
from swath.workers.hosting import described
from swath.workers.tickets import Name


@dataclass(frozen=True)
class Recipe:
    """What workers are made of.

    Attributes:
        worker_class: `RolloutWorker`, or what stands for it.
        env_creator: makes a sub-env of a context.
        validate_env: looks at each sub-env.
        default_policy_class: of policies without one.
        config: the settings.
        logdir: of the set; None: nothing is written.
    """

    worker_class: Callable[..., Any]
    env_creator: Callable[..., Any] | None
    validate_env: Callable[..., Any] | None
    default_policy_class: type | None
    config: AlgorithmConfig
    logdir: str | None = None

    def worker(self, index: int, num_workers: int, life: int = 0, spaces: Any = None) -> Any:
        """Build a worker.

        Args:
            index: 0 for the local one.
            num_workers: how many others there are.
            life: which of its lives it begins.
            spaces: by policy id, for a worker without env.
        """
        worker = self.worker_class(
            env_creator=self.env_creator,
            validate_env=self.validate_env,
            default_policy_class=self.default_policy_class,
            config=self.config,
            worker_index=index,
            num_workers=num_workers,
            recreated_worker=life > 0,
            log_dir=None if self.logdir is None else f"{self.logdir}/worker_{index}",
            spaces=spaces,
        )
        if life:
            worker.begin_life(life)
        return worker

    def job(self, name: Name, num_workers: int, resources: Mapping[str, Any], *, apart: bool) -> Job:
        """How a life is begun.

        Args:
            name: which life of which worker.
            num_workers: how many there are.
            resources: what its place is asked for.
            apart: whether it has a process of its own.
        """
        build = partial(_resident, self, name, num_workers, apart=apart)
        threads = max(1, int(self.config.num_cpus_per_env_runner))
        return Job(build, name, threads, resources=resources)


def _resident(recipe: Recipe, name: Name, num_workers: int, *, apart: bool) -> Resident:
    worker, stacks = recipe.worker(name.worker, num_workers, name.life), Stacks(None, None)
    if apart:
        folder = recipe.logdir and Path(recipe.logdir, f"worker_{name.worker}")
        path = Path(folder, f"stacks_of_life_{name.life}.txt") if folder else None
        stacks = Stacks(recipe.config.env_runner_hang_timeout_s, path)
    return Resident(worker, stacks, described(name))
