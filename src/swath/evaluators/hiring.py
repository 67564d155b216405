"""From what an `Evaluator` was asked for to the terms on which it has its workers."""

from __future__ import annotations

from functools import partial
from typing import Any

from swath.evaluate.company import Terms
from swath.evaluate.player import Player, Post
from swath.evaluate.privacy import private_copy
from swath.evaluate.setting import Setting, SettingRequest
from swath.evaluators.asked import Cast, Crew
from swath.rollout.hosts.sources import is_env_instance
from swath.seeds import fresh_root
from swath.workers import create
from swath.workers.base import Job
from swath.workers.tickets import Name

PRELOADED = ("swath.evaluate.player", "gymnasium", "tensordict")
"""What every worker imports in any case."""


def terms_of(cast: Cast, crew: Crew, seed: int | None) -> Terms:
    """How to have the workers; what an evaluator builds at once is built here.

    Without a seed there is one for factories all the same, so that their products are alike in all workers and lives.

    Raises:
        TypeError: the policy cannot be copied.
        Exception: what building the env raised.
    """
    alone = crew.place != "thread"
    policy = None if cast.policy is None else private_copy(cast.policy, "pass policy_factory, which builds one")
    root = fresh_root() if seed is None else seed
    request = SettingRequest(
        cast.env, cast.num_envs, policy, cast.factory, cast.device, root, alone, cast.making, cast.speedup
    )
    built = [Setting(request)] if not alone and not _still_to_be_built(cast) else []
    return Terms(
        partial(create.backend, crew.place, preload=PRELOADED),
        Jobs(request, crew, built),
        crew.workers,
        crew.retries,
        crew.deadlines.start_s,
        crew.model_ids,
    )


class Jobs:
    """Makes jobs.

    Args:
        request: what each worker builds.
        crew: where they live.
        built: what the first life is to use.
    """

    def __init__(self, request: SettingRequest, crew: Crew, built: list[Setting]) -> None:
        self._request, self._crew, self._built = request, crew, built

    def __call__(self, name: Name) -> Job:
        """How to bring up this life of this worker."""
        crew = self._crew
        post = Post(name, crew.workers, crew.place)
        build = (
            partial(_player, self._built, self._request, post) if self._built else partial(_new, self._request, post)
        )
        return Job(build, name, threads=crew.threads or 1, before=crew.init, resources=crew.resources)


def _player(built: list[Setting], request: SettingRequest, post: Post) -> Player:
    return Player(built.pop() if built else Setting(request), post)


def _new(request: SettingRequest, post: Post) -> Player:
    return Player(Setting(request), post)


def _still_to_be_built(cast: Cast) -> bool:
    entries: list[Any] = list(cast.env) if isinstance(cast.env, list | tuple) else [cast.env]
    return cast.factory is not None and not any(map(is_env_instance, entries))
