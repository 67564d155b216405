"""From what an `Evaluator` was asked for to the terms on which it has its workers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from swath.errors import WorkerLate
from swath.evaluate.company import Terms
from swath.evaluate.player import Player, Post
from swath.evaluate.privacy import private_copy, require_own
from swath.evaluate.setting import Setting, SettingRequest
from swath.evaluators.asked import Cast, WorkerOptions
from swath.rollout.hosts.sources import is_env_instance
from swath.seeds import fresh_root
from swath.workers import create
from swath.workers.base import Job
from swath.workers.tickets import Name

PRELOADED = ("swath.evaluate.player", "gymnasium", "tensordict")
"""What every worker imports in any case."""


def terms_of(cast: Cast, workers: WorkerOptions, seed: int | None) -> Terms:
    """How to have the workers; what an evaluator builds at once is built here.

    Without a seed there is one for factories all the same, so that their products are alike in all workers and lives.

    Raises:
        TypeError: the policy cannot be copied, or not with all that it runs.
        Exception: what building the env raised.
    """
    alone = workers.place != "thread"
    require_own(cast.policy)
    policy = None if cast.policy is None else private_copy(cast.policy, "pass policy_factory, which builds one")
    root = fresh_root() if seed is None else seed
    request = SettingRequest(
        cast.env, cast.num_envs, policy, cast.factory, cast.device, root, alone, cast.making, cast.speedup
    )
    jobs = Jobs(request, workers, [Setting(request)] if not alone and not _still_to_be_built(cast) else [])
    return Terms(
        partial(create.backend, workers.place, preload=PRELOADED, bare=workers.init is not None),
        jobs,
        jobs.leftover,
        workers.number,
        workers.retries,
        workers.deadlines.start_s,
        workers.deadlines.placement_s,
        workers.model_ids,
    )


@dataclass
class Instances:
    """Envs that were handed in, in which one life plays after another.

    Attributes:
        turn: held while they are used.
        setting: that of the last life.
    """

    turn: threading.Lock = field(default_factory=threading.Lock)
    setting: Setting | None = None

    @property
    def left_open(self) -> list[Setting]:
        """What the last life has not closed, and does not use."""
        setting = self.setting
        return [] if setting is None or setting.closed or self.turn.locked() else [setting]


class Jobs:
    """Makes jobs.

    Args:
        request: what each worker builds.
        workers: where they live, and how many they are.
        built: what the first life is to use.
    """

    def __init__(self, request: SettingRequest, workers: WorkerOptions, built: list[Setting]) -> None:
        self._request, self._workers, self._built = request, workers, built
        self._instances = Instances() if _is_of_instances(request.env) else None

    def __call__(self, name: Name) -> Job:
        """How to bring up this life of this worker."""
        workers, ready = self._workers, self._built.pop() if self._built else None
        build = partial(_player, ready, self._request, Post(name, workers.number, workers.place), self._instances)
        return Job(build, name, threads=workers.threads or 1, before=workers.init, resources=workers.resources)

    def leftover(self) -> list[Callable[[], None]]:
        """What closes what was built for nobody, and envs that were handed in and are open yet."""
        built, self._built = self._built, []
        left = [] if self._instances is None else self._instances.left_open
        return [setting.close for setting in (*built, *left)]


def _player(ready: Setting | None, request: SettingRequest, post: Post, instances: Instances | None) -> Player:
    with post.noted():
        if instances is None:
            return Player(ready or Setting(request), post)
        if instances.turn.locked():
            raise WorkerLate(
                f"{request.env} is still in a call that has not returned, in a thread that was left behind; until it "
                "has, nothing else can be done with this instance; of an id or a callable another would be built"
            )
        instances.setting = ready or Setting(request)
        return Player(instances.setting, post, instances.turn)


def _still_to_be_built(cast: Cast) -> bool:
    return cast.factory is not None and not _is_of_instances(cast.env)


def _is_of_instances(env: Any) -> bool:
    return any(map(is_env_instance, env if isinstance(env, list | tuple) else [env]))
