"""All workers of a set: how they are begun, what they are to know, how they end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Self

from swath.errors import Closed, PlacementFailed, WorkerLate, warn
from swath.group.stats import Counters
from swath.nearest import checked
from swath.options import Restarts, Survival, count, one_of, seconds
from swath.rollout_workers.callbacks import callbacks_of
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.config.envs import creator_of
from swath.rollout_workers.metrics import RolloutMetrics
from swath.rollout_workers.worker.worker import RolloutWorker
from swath.rollout_workers.worker_set import actor
from swath.rollout_workers.worker_set.actor import FILTER, GLOBAL_VARS, WEIGHTS, build_worker
from swath.rollout_workers.worker_set.group import RolloutGroup
from swath.weights.channel import Channel
from swath.workers.base import Backend, Job
from swath.workers.create import backend
from swath.workers.fleet import Fleet
from swath.workers.local import InlineBackend
from swath.workers.tickets import Name

TIMEOUT_S = 300.0
"""How long a call is waited for if nobody says."""

LONGEST_DELAY_S = 30.0
SURVIVAL = {"fragment_timeout_s": "env_runner_hang_timeout_s", "placement_timeout_s": "env_runner_restore_timeout_s"}
"""Settings, by what the fleet calls them."""

PRELOAD = ("worker_set.actor", "worker.worker", "policies.ppo")
"""What most workers need, of this package."""


def seconds_to_wait(timeout_seconds: float | None, otherwise: float = TIMEOUT_S) -> float:
    """How long a caller waits; None: as `otherwise`.

    Raises:
        ValueError: it is no number of seconds.
    """
    return otherwise if timeout_seconds is None else seconds("timeout_seconds", timeout_seconds)


class Workers:
    """The workers of a set; see `WorkerSet` for the arguments.

    Attributes:
        config: the settings by which workers are built, also those to come: to be read, not changed.
        kept_episodes: metrics that were collected when another worker raised; part of those that are collected next.
        kept_batches: that were collected when a later call of the same `sample` raised; part of the next.
    """

    worker_class: Callable[..., Any] | None = None
    """What workers are; None: `RolloutWorker`."""

    @checked
    def __init__(
        self,
        *,
        env_creator: Callable[..., Any] | None = None,
        validate_env: Callable[..., Any] | None = None,
        default_policy_class: type | None = None,
        config: AlgorithmConfig | Mapping[str, Any] | None = None,
        num_workers: int | None = None,
        backend: str | None = None,
        local_worker: bool = True,
        logdir: str | None = None,
        num_env_runners: int | None = None,
        local_env_runner: bool | None = None,
        _setup: bool = True,
    ) -> None:
        self.config = own = AlgorithmConfig.of(config)
        number = _either("num_workers", num_workers, "num_env_runners", num_env_runners)
        own.env_runners(num_env_runners=own.num_env_runners if number is None else number).validate()
        if backend is not None:
            one_of("backend", backend, Literal["ray", "process", "inline"])
        creator = env_creator or (None if own.env is None else creator_of(own.env))
        if creator is None and _setup:
            raise ValueError("nothing to make envs with: give env_creator, or a config with environment(env=…)")
        made_of: dict[str, Any] = {"env_creator": creator, "validate_env": validate_env, "config": own}
        self._make = partial(self.worker_class or RolloutWorker, **made_of, default_policy_class=default_policy_class)
        self._callbacks, self._logdir, self._place = callbacks_of(own), logdir, backend
        self._wants_local = (local_worker if local_env_runner is None else local_env_runner) or not own.num_env_runners
        self._local_env_runner: Any = None
        self._shared = dict[str, Any]()  # what later workers are brought up to, besides weights
        self._seen = dict[str, Any]()  # filters of what all workers have seen, where there is no local worker
        self._returned, self.kept_episodes, self.kept_batches = list[int](), list[RolloutMetrics](), list[Any]()
        self._version, self._stopped, self._counters = 0, False, Counters()
        self._group = self._group_in(InlineBackend(), 0, Survival())
        if _setup:
            try:
                self._begin()
            except BaseException:
                self.stop(0.0)
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        group = self._group
        local = "no local worker" if self._local_env_runner is None else "a local worker"
        remote = f"; {group.fleet!r}, version {group.channel.version}" if group.ids() else ""
        return f"<{type(self).__name__}: {'stopped' if self._stopped else local + remote}>"

    def local_worker(self) -> Any:
        """Worker 0, or None."""
        return self._local_env_runner

    local_env_runner = property(local_worker)

    def worker_ids(self) -> list[int]:
        """Ids of the remote workers that live or are coming back."""
        return self._group.ids()

    def healthy_worker_ids(self) -> list[int]:
        """Ids of the remote workers that can be called, as far as is known."""
        return sorted(self._open(losses=False).fleet.up)

    def add_workers(self, n: int | None = None, validate: bool = False, *, num_workers: int | None = None) -> None:
        """Add remote workers, and wait until they can be called.

        Args:
            n: how many.
            validate: also wait until they have answered that they are healthy.
            num_workers: another name of `n`.

        Raises:
            WorkerLate: some were not ready in time.
            Exception: what building one raised. In both cases none is added.
        """
        number = count("n" if num_workers is None else "num_workers", _either("n", n, "num_workers", num_workers))
        before = {*self._open().ids()}
        self._grow(number)
        if validate:
            call: Sequence[Any] = ("run", "assert_healthy", {})
            self._group.answers(self._group.send(dict.fromkeys({*self.worker_ids()} - before, call)), TIMEOUT_S)

    def remove_workers(self, ids: Sequence[int]) -> None:
        """End remote workers for good; what they have not delivered is lost.

        Raises:
            ValueError: there is no such worker.
        """
        group = self._open()
        for worker in self._addressed(ids):
            group.removed.add(worker)
            group.fleet.retire(worker)
            group.channel.left(worker)
            for request in [one for one in group.out if one.worker == worker and one.reply is None]:
                group.close(request)
        self._share_number()

    def reset(self, new_remote_workers: Sequence[Any]) -> None:
        """Raise: a set builds its own workers."""
        why = f"{len(new_remote_workers)} workers made elsewhere cannot be taken over: a set builds its own"
        raise NotImplementedError(f"{why}; give WorkerSet an env_creator and num_workers, or call add_workers(n)")

    def probe_unhealthy_workers(self, timeout_seconds: float | None = None) -> list[int]:
        """The ids of workers that came back since the last call.

        Nothing need be probed for them to come back; those on their way are waited for.

        Args:
            timeout_seconds: for how long; None: `config.env_runner_health_probe_timeout_s`.
        """
        timeout = seconds_to_wait(timeout_seconds, self.config.env_runner_health_probe_timeout_s)
        self._wait_for(self._open().ids(), timeout)
        self._open()
        returned, self._returned = self._returned, []
        return sorted(set(returned))

    def stop(self, timeout_s: float = 10.0) -> None:
        """Ask the workers to close their envs, then end them, however that goes; twice is fine.

        Args:
            timeout_s: how long they are waited for.

        Raises:
            ValueError: that is no number of seconds; nothing is stopped.
        """
        timeout = seconds("timeout_s", timeout_s)
        if self._stopped:
            return
        self._stopped = True
        try:
            for error in self._group.fleet.close(timeout):
                warn(f"a worker raised when it was closed: {error!r}")
        finally:
            if self._local_env_runner is not None:
                self._local_env_runner.stop()

    def _open(self, *, losses: bool = True) -> RolloutGroup:
        """The remote workers, as they are now.

        Args:
            losses: raise those that are not tolerated.

        Raises:
            Closed: the set was stopped.
            FleetFailed: too few are left, or too many died in a row.
            WorkerLost: one died, and that is not tolerated.
        """
        if self._stopped:
            raise Closed("the set was stopped; build another WorkerSet")
        group = self._group
        group.fleet.look()
        if group.unreported:
            returned, group.unreported = sorted(group.unreported), []
            self._returned += returned
            evaluation = self.config.in_evaluation
            for report in (self._callbacks.on_workers_recreated, self._callbacks.on_env_runners_recreated):
                report(worker_set=self, worker_ids=returned, is_evaluation=evaluation)
        if losses:
            group.require_unharmed()
        return group

    def _addressed(self, worker_ids: Sequence[int] | None) -> list[int]:
        """Those of these ids that live or are coming back; None: all.

        Raises:
            ValueError: there is no such worker.
        """
        known, there = self._group.ids(), {*self._group.fleet.standings()} - self._group.removed
        if unknown := [each for each in worker_ids or () if each not in there]:
            raise ValueError(f"worker_ids={worker_ids} has {unknown}, and the remote workers are {sorted(there)}")
        return known if worker_ids is None else [each for each in dict.fromkeys(worker_ids) if each in known]

    def _require_workers(self) -> None:
        """Raise `ValueError` if there is no worker at all."""
        if not self._group.ids() and self._local_env_runner is None:
            raise ValueError("this set has no worker; give num_workers or local_worker=True, or call add_workers(n)")

    def _ask_first(self, method: str, **keywords: Any) -> Any:
        """What a method gives in the local worker, or in the first remote one that can be called.

        Raises:
            WorkerLate: it does not answer in time.
            FleetFailed: there is none.
            Exception: what it raised.
        """
        if self._local_env_runner is not None:
            return getattr(self._local_env_runner, method)(**keywords)
        return self._group.call_first("run", method, keywords).value

    def _wait_for(self, workers: Sequence[int], timeout: float) -> None:
        """Wait until none of these is coming back any more, or the time is over."""
        group = self._group
        group.wait_until(lambda: all(each in group.fleet.up or group.is_gone(each) for each in workers), timeout)

    def _publish(
        self,
        weights: Mapping[str, Any],
        workers: Sequence[int] | None = None,
        global_vars: Mapping[str, Any] | None = None,
    ) -> int:
        """Make weights the newest of all remote workers, or of some; the version, above all others."""
        self._version = max(self._version, getattr(self._local_env_runner, "policy_version", 0)) + 1
        shared = {policy_id: actor.SharedWeights(self._version, values) for policy_id, values in weights.items()}
        models: dict[str, Any] = {f"{WEIGHTS}{policy_id}": one for policy_id, one in shared.items()}
        if global_vars is not None:
            models[GLOBAL_VARS] = self._shared[GLOBAL_VARS] = {**self._shared.get(GLOBAL_VARS, {}), **global_vars}
        return self._group.channel.publish(models, workers, self._version)

    def _share(self, values: Mapping[str, Any]) -> None:
        """Have all workers take these with the next request to each, also those to come; no weights.

        Raises:
            TypeError: they cannot be pickled, where they have to be; nothing is taken.
        """
        self._group.channel.publish(values, version=self._group.channel.version)
        self._shared |= values

    def _share_number(self) -> None:
        """Have all workers, also those to come, count on as many remote workers as there are now."""
        self.config.num_env_runners = number = len(self.worker_ids())
        if self._local_env_runner is not None:
            self._local_env_runner.num_workers = number
        self._share({actor.NUM_WORKERS: number})

    def _begin(self) -> None:
        """Build all; what one of them raised is raised."""
        number, config = self.config.num_env_runners, self.config
        has_env = not number or config.create_local_env_runner or config.create_env_on_local_worker
        if self._wants_local and has_env:
            self._local_env_runner = build_worker(self._make, self._logdir, 0, 0, number)
        if number:
            self._grow(number, waits=config.validate_env_runners_after_construction)
        self._counters.start_clock()

    def _grow(self, n: int, *, waits: bool = True) -> None:
        """Bring up more remote workers, and wait for them unless told otherwise.

        Raises:
            WorkerLate: some were not ready in time.
            Exception: what building one raised. In both cases none is added.
        """
        are_first = not self._group.fleet.standings()
        self.config.num_env_runners = len(self.worker_ids()) + n
        if are_first:
            self._group = self._remote_group(0 if waits else n)
        try:
            self._group.fleet.add(n if waits else 0)
        except PlacementFailed as failure:
            deadline = self._group.fleet.survival.placement_timeout_s
            raise WorkerLate(f"{failure}; all are ended", deadline=deadline) from failure
        finally:
            self.config.num_env_runners = len(self.worker_ids())
        if are_first:
            if self._wants_local and self._local_env_runner is None:
                self._local_env_runner = build_worker(self._make, self._logdir, 0, 0, n, self._ask_first("get_spaces"))
            if self._local_env_runner is not None:
                self._shared |= {
                    f"{FILTER}{policy_id}": one for policy_id, one in self._local_env_runner.get_filters().items()
                }
            weights = self._ask_first("get_weights")
            self._share(self._shared)
            self._publish(weights)
            if waits:
                self._group.update(self._group.fleet.up, self.config.env_runner_restore_timeout_s)
        self._share_number()

    def _remote_group(self, begun: int) -> RolloutGroup:
        """The group where the options say that workers live; so many are begun at once, and not waited for."""
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
        self._place = where
        survival = Survival(
            Restarts(max_per_worker=most, backoff_s=delay, backoff_max_s=max(delay, LONGEST_DELAY_S)),
            min_workers=1,
            fragment_timeout_s=None if where == "inline" else config[hang],  # who is busy inline cannot be ended
            placement_timeout_s=config[restore],
            names=SURVIVAL,
        )
        return self._group_in(remote, begun, survival)

    def _group_in(self, remote: Backend, begun: int, survival: Survival) -> RolloutGroup:
        fleet = Fleet(remote, self._job, begun, survival, first=1)
        return RolloutGroup(fleet, Channel(remote.share), self.config)

    def _job(self, name: Name) -> Job:
        config, number = self.config, max(name.worker, self.config.num_env_runners)
        resources: dict[str, Any] = {}
        if self._place == "ray":
            resources = {"num_cpus": config.num_cpus_per_env_runner, "num_gpus": config.num_gpus_per_env_runner}
            resources["resources"] = dict(config.custom_resources_per_env_runner)
        hang_timeout_s = self._group.fleet.survival.fragment_timeout_s
        build = partial(actor.RolloutActor, self._make, self._logdir, name, number, hang_timeout_s)
        return Job(build, name, max(1, int(config.num_cpus_per_env_runner)), resources=resources)


def _either(name: str, value: Any, other: str, also: Any) -> Any:
    """What is given by either of two names.

    Raises:
        ValueError: two values.
    """
    if None not in (value, also) and value != also:
        raise ValueError(f"{name}={value!r} and {other}={also!r} are two names of one thing; give one of them")
    return also if value is None else value
