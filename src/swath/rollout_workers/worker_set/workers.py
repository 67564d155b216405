"""All workers of a set: how they are begun, what they are to know, how they end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, Self

from swath.errors import Closed, PlacementFailed, WorkerLate, warn
from swath.options import Restarts, Survival, one_of
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.config.envs import creator_of
from swath.rollout_workers.worker_set import actor
from swath.rollout_workers.worker_set.actor import FILTER, GLOBAL_VARS, POLICY, WEIGHTS, build_worker, by_policy
from swath.rollout_workers.worker_set.group import TIMEOUT_S, RolloutGroup
from swath.workers.base import Job
from swath.workers.create import backend
from swath.workers.outcome import Error
from swath.workers.tickets import Name

LONGEST_DELAY_S = 30.0
SURVIVAL = {"fragment_timeout_s": "env_runner_hang_timeout_s", "placement_timeout_s": "env_runner_restore_timeout_s"}
"""Settings, by what the fleet calls them."""

COUNTED = ("frames", "batches", "fps", "seconds", "seconds_waiting")
PRELOAD = ("worker_set.actor", "worker.worker", "policies.ppo")
"""What most workers need, of this package."""


@dataclass(frozen=True, kw_only=True)
class SetOptions:
    """What `WorkerSet` takes; what each means stands there.

    Raises:
        ValueError: there is nothing to make envs with, no such backend, or two names of one thing differ.
    """

    env_creator: Callable[..., Any] | None = None
    validate_env: Callable[..., Any] | None = None
    default_policy_class: type | None = None
    config: AlgorithmConfig | Mapping[str, Any] | None = None
    num_workers: int | None = None
    backend: str | None = None
    local_worker: bool = True
    logdir: str | None = None
    num_env_runners: int | None = None
    local_env_runner: bool | None = None
    _setup: bool = True

    def __post_init__(self) -> None:
        if self.backend is not None:
            one_of("backend", self.backend, Literal["ray", "process", "inline"])
        if self.creator is None and self._setup:
            raise ValueError("nothing to make envs with: give env_creator, or a config with environment(env=…)")

    @cached_property
    def settings(self) -> AlgorithmConfig:
        """The set's own config."""
        own = AlgorithmConfig.of(self.config)
        number = either("num_workers", self.num_workers, "num_env_runners", self.num_env_runners)
        own.env_runners(num_env_runners=own.num_env_runners if number is None else number).validate()
        return own

    @property
    def builds(self) -> bool:
        """Whether workers are built at once."""
        return self._setup

    @property
    def creator(self) -> Callable[..., Any] | None:
        """What makes envs."""
        return self.env_creator or (None if self.settings.env is None else creator_of(self.settings.env))


def either(name: str, value: Any, other: str, also: Any) -> Any:
    """What is given by either of two names.

    Raises:
        ValueError: two values.
    """
    if None not in (value, also) and value != also:
        raise ValueError(f"{name}={value!r} and {other}={also!r} are two names of one thing; give one of them")
    return also if value is None else value


class Workers(RolloutGroup):
    """The workers of one set, and what those that come later begin with.

    Args:
        kind: what a worker is.
        options: of the set.
        report: called with the ids of workers that came back.

    Attributes:
        local: worker 0, or None.
        shared: what all workers are to know besides weights, by the keys of `actor.py`: the changes that a worker is
            brought up to when it begins.
        seen: filters of what all workers have seen, by policy id, where there is no local worker.
        returned: ids of workers that came back since `probe_unhealthy_workers` was called.
        stopped: nothing lives any more.
    """

    def __init__(self, kind: actor.WorkerMaker, options: SetOptions, report: Callable[[list[int]], None]) -> None:
        config = options.settings
        super().__init__(config, self._job)
        made_of = {"env_creator": options.creator, "validate_env": options.validate_env, "config": config}
        self._make = partial(kind, **made_of, default_policy_class=options.default_policy_class)
        self.local: Any = None
        self.shared, self.seen, self.returned = dict[str, Any](), dict[str, Any](), list[int]()
        self._place, self._logdir, self._report = options.backend, options.logdir, report
        self._number, self._version, self.stopped, self._is_placed = config.num_env_runners, 0, False, False
        wanted = options.local_worker if options.local_env_runner is None else options.local_env_runner
        self._wants_local = wanted or not self._number

    def begin(self) -> None:
        """Build all; what one of them raised is raised."""
        number, config = self._number, self.config
        has_env = not number or config.create_local_env_runner or config.create_env_on_local_worker
        if self._wants_local and has_env:
            self.local = build_worker(self._make, self._logdir, 0, 0, number)
        if number:
            self.grow(number, waits=config.validate_env_runners_after_construction)
        self.counters.seconds_waiting = 0.0
        self.counters.start_clock()

    def grow(self, n: int, *, waits: bool = True) -> None:
        """Bring up more remote workers, and wait for them unless told otherwise.

        Raises:
            WorkerLate: some were not ready in time.
            Exception: what building one raised. In both cases none is added.
        """
        self._number, are_first = len(self.ids()) + n, not self.fleet.standings()
        if not self._is_placed:
            self._settle(0 if waits else n)
        try:
            self.fleet.add(n if waits else 0)
        except PlacementFailed as failure:
            deadline = self.fleet.survival.placement_timeout_s
            raise WorkerLate(f"{failure}; all are ended", deadline=deadline) from failure
        if are_first:
            if self._wants_local and self.local is None:
                self.local = build_worker(self._make, self._logdir, 0, 0, n, self.ask_first("get_spaces"))
            self._share_beginning(waits=waits)
        self._share_number()

    def shrink(self, workers: Sequence[int]) -> None:
        """End workers for good; what they have not answered is wanted no more."""
        for worker in workers:
            self.removed.add(worker)
            self.fleet.retire(worker)
            self.channel.left(worker)
            for request in [one for one in self.out if one.worker == worker and one.reply is None]:
                self.close(request)
        self._share_number()

    def open(self, *, losses: bool = True) -> Self:
        """The remote workers, as they are now.

        Args:
            losses: raise those that are not tolerated.

        Raises:
            Closed: the set was stopped.
            FleetFailed: too few are left, or too many died in a row.
            WorkerLost: one died, and that is not tolerated.
        """
        if self.stopped:
            raise Closed("the set was stopped; build another WorkerSet")
        self.fleet.look()
        if self.unreported:
            returned, self.unreported = sorted(self.unreported), []
            self.returned += returned
            self._report(returned)
        if losses:
            self.require_enough()
            self._require_few()
            for name in list(self._to_raise):
                raise self._seen(name, self._to_raise[name])
        return self

    def addressed(self, worker_ids: Sequence[int] | None) -> list[int]:
        """Those of these ids that live or are coming back; None: all.

        Raises:
            ValueError: there is no such worker.
        """
        known = self.ids()
        there = {*self.fleet.standings()} - self.removed
        if unknown := [each for each in worker_ids or () if each not in there]:
            raise ValueError(f"worker_ids={worker_ids} has {unknown}, and the remote workers are {sorted(there)}")
        return known if worker_ids is None else [each for each in dict.fromkeys(worker_ids) if each in known]

    def publish(
        self,
        weights: Mapping[str, Any],
        workers: Sequence[int] | None = None,
        global_vars: Mapping[str, Any] | None = None,
    ) -> int:
        """Make weights the newest of all remote workers, or of some; the version, above all others."""
        self._version = max(self._version, getattr(self.local, "policy_version", 0)) + 1
        shared = {policy_id: actor.SharedWeights(self._version, values) for policy_id, values in weights.items()}
        models: dict[str, Any] = {f"{WEIGHTS}{policy_id}": one for policy_id, one in shared.items()}
        if global_vars is not None:
            models[GLOBAL_VARS] = self.shared[GLOBAL_VARS] = {**self.shared.get(GLOBAL_VARS, {}), **global_vars}
        self.channel.publish(models, workers, self._version)
        return self._version

    def share(self, values: Mapping[str, Any]) -> None:
        """Have all workers take these with the next request to each, also those to come; no weights.

        Raises:
            TypeError: they cannot be pickled, where they have to be; nothing is taken.
        """
        self.channel.publish(values, version=self.channel.version)
        self.shared |= values

    def change(self, values: Mapping[str, Any], here: Callable[[Any], None] | None = None) -> None:
        """Share a change of policies: now with workers that are free, with others before they do anything else.

        Args:
            values: to be shared; what was shared of policies that are removed by it is sent to nobody any more.
            here: makes the change in the local worker, once it is on its way.

        Raises:
            TypeError: it cannot be pickled, where it has to be; nothing is changed.
            Exception: what a worker raised.
        """
        self.open()
        self.share(values)
        for policy_id in [policy_id for policy_id, how in by_policy(values, POLICY).items() if not how]:
            self.seen.pop(policy_id, None)
            self.shared.pop(f"{FILTER}{policy_id}", None)
            self.channel.withdraw([f"{WEIGHTS}{policy_id}", f"{FILTER}{policy_id}"])
        if here is not None and self.local is not None:
            here(self.local)
        self.update([worker for worker in self.fleet.up if self.is_free(worker)], TIMEOUT_S)

    def policy_ids(self) -> set[str]:
        """Of the policies that all workers have."""
        self.open()
        if self.local is not None:
            return set(self.local.policy_map)
        return {pid for pid, how in {**self.config.policies, **by_policy(self.shared, POLICY)}.items() if how}

    def ask_first(self, method: str, **keywords: Any) -> Any:
        """What a method gives in the local worker, or in the first remote one that can be called.

        Raises:
            WorkerLate: none can, or it does not answer, in time.
            Exception: what it raised.
        """
        if self.local is not None:
            return getattr(self.local, method)(**keywords)
        self.require_workers()
        call = {min(self.fleet.up or self.ids()): ("run", method, keywords)}
        (outcome,) = self.ask_each(call, self.config.env_runner_restore_timeout_s, all_losses=True).values()
        if isinstance(outcome, Error):
            raise outcome.exception
        return outcome.value

    def require_workers(self) -> None:
        """Raise `ValueError` if there is no worker at all."""
        if not self.ids() and self.local is None:
            raise ValueError("this set has no worker; give num_workers or local_worker=True, or call add_workers(n)")

    def wait_for(self, workers: Sequence[int], timeout: float) -> None:
        """Wait until none of these is coming back any more, or the time is over."""

        def are_settled() -> bool:
            return not {self.fleet.standings()[each].phase for each in workers} & {"starting", "waiting"}

        self.wait_until(are_settled, timeout)

    def stats(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Numbers of all workers together, and by worker; any thread may ask."""
        standings = {w: each for w, each in self.fleet.standings().items() if w not in self.removed}
        newest = self.channel.version if standings else getattr(self.local, "policy_version", 0)
        facts = {name: getattr(self.counters, name) for name in COUNTED} | {"policy_version": newest}
        of_workers: dict[str, Any] = {}
        for worker, standing in standings.items():
            version = self.version_of(Name(worker, standing.life))
            own = {"frames": self.frames[worker], "life": standing.life, "policy_version": version}
            state = {"state": "closed" if self.stopped else standing.words, "staleness": max(0, newest - version)}
            of_workers |= {f"worker_{worker}/{name}": fact for name, fact in {**own, **state}.items()}
        if standings:
            oldest = min(self.known_versions().values(), default=0)
            facts |= {
                "policy_version_min": oldest,
                "staleness": max(0, newest - oldest),
                "workers": len(standings),
                "workers_alive": 0 if self.stopped else len(self.fleet.up),
                "restarts": self.fleet.restarts,
                "workers_lost": sum(standing.phase == "gone" for standing in standings.values()),
                "late": len(self.fleet.late),
                "fragments_lost": self.fragments_lost,
            }
        return facts, of_workers

    def stop(self, timeout: float) -> None:
        """End all; twice is fine."""
        if self.stopped:
            return
        self.stopped = True
        try:
            for error in self.fleet.close(timeout):
                warn(f"a worker raised when it was closed: {error!r}")
        finally:
            if self.local is not None:
                self.local.stop()

    def _settle(self, begun: int) -> None:
        """Have remote workers live where the options say from now on; so many are begun at once."""
        config, ray = self.config, sys.modules.get("ray")
        where = self._place or ("ray" if ray is not None and ray.is_initialized() else "process")
        if where != "ray" and (resources := config.custom_resources_per_env_runner):
            raise ValueError(f"custom_resources_per_env_runner={resources} are on Ray only, not with backend={where!r}")
        try:
            remote = backend(where, preload=[f"swath.rollout_workers.{module}" for module in PRELOAD])
        except ImportError as error:
            raise RuntimeError(f"backend={where!r} cannot be used: {error}") from error
        delay, hang, restore = config.delay_between_env_runner_restarts_s, *SURVIVAL.values()
        most = config.max_num_env_runner_restarts if config.restart_failed_env_runners else 0
        self._hang_timeout_s = None if where == "inline" else config[hang]  # who is busy inline cannot be ended
        self._place = where
        survival = Survival(
            Restarts(max_per_worker=most, backoff_s=delay, backoff_max_s=max(delay, LONGEST_DELAY_S)),
            min_workers=1,
            fragment_timeout_s=self._hang_timeout_s,
            placement_timeout_s=config[restore],
            names=SURVIVAL,
        )
        self.live_in(remote, begun, survival)
        self._is_placed = True

    def _share_beginning(self, *, waits: bool) -> None:
        """Have remote workers begin with what is known here; without a local one, with the first one's weights."""
        if self.local is not None:
            self.shared |= {f"{FILTER}{policy_id}": one for policy_id, one in self.local.get_filters().items()}
        weights = self.ask_first("get_weights")
        self.share(self.shared)
        self.publish(weights)
        if waits:
            self.update(self.fleet.up, self.config.env_runner_restore_timeout_s)

    def _share_number(self) -> None:
        """Have all workers, also those to come, count on as many remote workers as there are now."""
        number = len(self.ids())
        self.config = self.config.copy().env_runners(num_env_runners=number)
        if self.local is not None:
            self.local.num_workers = number
        self.share({actor.NUM_WORKERS: number})

    def _job(self, name: Name) -> Job:
        config, number = self.config, max(name.worker, self._number)
        resources: dict[str, Any] = {}
        if self._place == "ray":
            resources = {"num_cpus": config.num_cpus_per_env_runner, "num_gpus": config.num_gpus_per_env_runner}
            resources["resources"] = dict(config.custom_resources_per_env_runner)
        build = partial(actor.RolloutActor, self._make, self._logdir, name, number, self._hang_timeout_s)
        return Job(build, name, max(1, int(config.num_cpus_per_env_runner)), resources=resources)
