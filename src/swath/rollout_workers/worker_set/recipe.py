"""How the workers of a set are built: the local one, and the group of remote ones with its backend and fleet."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from swath.options import Restarts, Survival
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.worker_set.actor import RolloutActor
from swath.rollout_workers.worker_set.group import RolloutGroup
from swath.weights.channel import Channel
from swath.workers.base import Backend, Job
from swath.workers.create import backend
from swath.workers.fleet import Fleet
from swath.workers.local import InlineBackend
from swath.workers.tickets import Name

LONGEST_DELAY_S = 30.0
SETTING_NAMES = {
    "fragment_timeout_s": "env_runner_hang_timeout_s",
    "placement_timeout_s": "env_runner_restore_timeout_s",
}
"""Settings by their names in the fleet."""

PRELOAD = ("worker_set.actor", "worker.worker", "policies.ppo")
"""Modules of this package that most workers need."""


@dataclass
class Recipe:
    """How the workers of a set are built.

    Attributes:
        config: of the set, which may change it.
        make: builds a worker.
        log_dir: workers write to folders in it; None: nothing is written.
        place: name of the backend; None: Ray if it runs in this process, else processes.
    """

    config: AlgorithmConfig
    make: Callable[..., Any]
    log_dir: str | None
    place: str | None

    def worker(self, name: Name, number: int, spaces: Any = None) -> partial[Any]:
        """Return the function that builds a life of a worker in a set of `number` remote workers."""
        log_dir = self.log_dir and f"{self.log_dir}/worker_{name.worker}"
        numbers = {"worker_index": name.worker, "recreated_worker": name.life, "num_workers": number}
        return partial(self.make, **numbers, log_dir=log_dir, spaces=spaces)

    def remote_group(self, n_started: int) -> RolloutGroup:
        """Return a group in the backend; start `n_started` workers at once, without waiting for them."""
        ray = sys.modules.get("ray")
        place = self.place or ("ray" if ray is not None and ray.is_initialized() else "process")
        if place != "ray" and (resources := self.config.custom_resources_per_env_runner):
            raise ValueError(f"custom_resources_per_env_runner={resources} are on Ray only, not with backend={place!r}")
        try:
            remote = backend(place, preload=[f"swath.rollout_workers.{module}" for module in PRELOAD])
        except ImportError as error:
            raise RuntimeError(f"backend={place!r} cannot be used: {error}") from error
        self.place = place
        return self._group_in(remote, n_started)

    def empty_group(self) -> RolloutGroup:
        """Return the group of a set that has no remote workers."""
        return self._group_in(InlineBackend(), 0)

    def _group_in(self, remote: Backend, n_started: int) -> RolloutGroup:
        config, delay = self.config, self.config.delay_between_env_runner_restarts_s
        max_restarts = config.max_num_env_runner_restarts if config.restart_failed_env_runners else 0
        # a busy worker of an inline backend cannot be ended
        hang_timeout_s = None if isinstance(remote, InlineBackend) else config.env_runner_hang_timeout_s
        survival = Survival(
            Restarts(max_per_worker=max_restarts, backoff_s=delay, backoff_max_s=max(delay, LONGEST_DELAY_S)),
            min_workers=1,
            fragment_timeout_s=hang_timeout_s,
            placement_timeout_s=config.env_runner_restore_timeout_s,
            names=SETTING_NAMES,
        )
        fleet = Fleet(remote, partial(self._job, hang_timeout_s), n_started, survival, first=1)
        return RolloutGroup(fleet, Channel(remote.share), config)

    def _job(self, hang_timeout_s: float | None, name: Name) -> Job:
        config = self.config
        resources: dict[str, Any] = {}
        if self.place == "ray":
            resources = {"num_cpus": config.num_cpus_per_env_runner, "num_gpus": config.num_gpus_per_env_runner}
            resources["resources"] = dict(config.custom_resources_per_env_runner)
        make = self.worker(name, max(name.worker, config.num_env_runners))
        build = partial(RolloutActor, make, name, make.keywords["log_dir"], hang_timeout_s)
        return Job(build, name, max(1, int(config.num_cpus_per_env_runner)), resources=resources)
