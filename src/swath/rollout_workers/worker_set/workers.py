"""How the workers of a set are begun, what they are to know, how they end.

changes ─▶ channel ─▶ with the next request to each ─▶ `RolloutActor`, also of those that come back or are added
        └▶ local worker
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Self

from swath.errors import PlacementFailed, WorkerLate, warn
from swath.group.stats import Counters, viewed
from swath.nearest import checked
from swath.options import Restarts, Survival, count, one_of, seconds
from swath.rollout_workers.batches.sample_batch import MultiAgentBatch, SampleBatch
from swath.rollout_workers.callbacks import callbacks_of
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.config.envs import creator_of
from swath.rollout_workers.worker.worker import RolloutWorker
from swath.rollout_workers.worker_set import actor
from swath.rollout_workers.worker_set.calls import Calls
from swath.rollout_workers.worker_set.group import Event, RolloutGroup
from swath.weights.channel import Channel
from swath.workers.base import Backend, Job
from swath.workers.create import backend
from swath.workers.fleet import Fleet
from swath.workers.fleet_state import FIRST
from swath.workers.local import InlineBackend
from swath.workers.tickets import Name

COUNTED = ("frames", "batches", "fps", "seconds", "seconds_waiting")
LONGEST_DELAY_S = 30.0
SURVIVAL = {"fragment_timeout_s": "env_runner_hang_timeout_s", "placement_timeout_s": "env_runner_restore_timeout_s"}
"""Settings, by what the fleet calls them."""

PRELOAD = ("worker_set.actor", "worker.worker", "policies.ppo")
"""What most workers need, of this package."""


class Workers(Calls):
    """The workers of a set, from begin to end; see `WorkerSet` for the arguments.

    Attributes:
        kept_batches: that were collected when a later call of the same `sample` raised; part of the next.
    """

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
        self._make = partial(RolloutWorker, **made_of, default_policy_class=default_policy_class)
        self._callbacks, self._logdir, self._place = callbacks_of(own), logdir, backend
        self._wants_local = (local_worker if local_env_runner is None else local_env_runner) or not own.num_env_runners
        self._shared = dict[str, Any]()  # what later workers are brought up to, besides weights
        self.kept_batches = list[SampleBatch | MultiAgentBatch]()
        self._version, self._counters, self._returned = 0, Counters(), []
        self._group = self._group_in(InlineBackend(), 0)
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

    def num_remote_workers(self) -> int:
        """How many remote workers live or are coming back."""
        return len(self.worker_ids())

    def num_healthy_remote_workers(self) -> int:
        """How many remote workers can be called, as far as is known."""
        return len(self.healthy_worker_ids())

    def num_healthy_workers(self) -> int:
        """The same with the local worker."""
        return self.num_healthy_remote_workers() + (self._local_env_runner is not None)

    def num_remote_worker_restarts(self) -> int:
        """How often a remote worker was replaced."""
        return self._group.fleet.restarts

    def get_spaces(self) -> dict[str, Any]:
        """Spaces of observations and actions by policy id, and of the env under `"__env__"`."""
        spaces: dict[str, Any] = self._ask_first("get_spaces")
        return spaces

    def events(self) -> list[Event]:
        """What has happened to workers since the last call: (time, worker, life, kind, text) each."""
        if not self._stopped:
            self._open(losses=False)
        events = self._group.events
        return [events.popleft() for _ in range(len(events))]

    def stats(self, workers: str = "aggregate") -> dict[str, Any]:
        """Numbers and short strings on this set, under the names of collectors; asks nobody, never waits.

        Any thread may call it, also after `stop`. What has become of workers is known as of the last call of another
        method. Frames are env steps that `sample` has handed out.

        Args:
            workers: `"aggregate"`, `"per_worker"` or `"both"`.

        Raises:
            ValueError: another view.
        """
        group = self._group
        standings = {w: each for w, each in group.fleet.standings().items() if w not in group.removed}
        newest = group.channel.version if standings else getattr(self._local_env_runner, "policy_version", 0)
        facts = {name: getattr(self._counters, name) for name in COUNTED} | {"policy_version": newest}
        of_workers: dict[str, Any] = {}
        for worker, standing in standings.items():
            version, name = group.versions[worker], f"worker_{worker}"
            of_workers[f"{name}/frames"] = group.frames[worker]
            of_workers[f"{name}/life"] = standing.life
            of_workers[f"{name}/policy_version"] = version
            of_workers[f"{name}/staleness"] = max(0, newest - version)
            of_workers[f"{name}/state"] = "closed" if self._stopped else standing.words
        if standings:
            oldest = min((group.versions[worker] for worker in group.ids()), default=0)
            facts["policy_version_min"], facts["staleness"] = oldest, max(0, newest - oldest)
            facts["workers"], facts["restarts"] = len(standings), group.fleet.restarts
            facts["workers_alive"] = 0 if self._stopped else len(group.fleet.up)
            facts["workers_lost"] = len(standings) - len(group.ids())
            facts["late"], facts["fragments_lost"] = len(group.fleet.late), group.fragments_lost
        return viewed(workers, facts, of_workers)

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
            self.foreach_worker("assert_healthy", worker_ids=[*{*self.worker_ids()} - before], local_worker=False)

    def remove_workers(self, ids: Sequence[int]) -> None:
        """End remote workers for good; what they have not delivered is lost.

        Raises:
            ValueError: there is no such worker.
        """
        group, leaving = self._open(), self._addressed(ids)
        group.drop(leaving)
        group.removed |= {*leaving}
        for worker in leaving:
            group.fleet.retire(worker)
            group.channel.left(worker)
        self._share_number()

    def reset(self, new_remote_workers: Sequence[Any]) -> None:
        """Raise: a set builds its own workers."""
        why = f"{len(new_remote_workers)} workers made elsewhere cannot be taken over: a set builds its own"
        raise NotImplementedError(f"{why}; give WorkerSet an env_creator and num_workers, or call add_workers(n)")

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

    env_runner_ids = Calls.worker_ids
    healthy_env_runner_ids = Calls.healthy_worker_ids
    num_remote_env_runners = num_remote_workers
    num_healthy_remote_env_runners = num_healthy_remote_workers
    num_healthy_env_runners = num_healthy_workers
    num_remote_env_runner_restarts = num_remote_worker_restarts
    probe_unhealthy_env_runners = Calls.probe_unhealthy_workers

    def _publish(
        self, weights: Mapping[str, Any], others: Mapping[str, Any], workers: Sequence[int] | None = None
    ) -> int:
        """Make weights the newest of all remote workers, or of some; the version, above all others.

        Args:
            weights: by policy id.
            others: what goes with them, and is kept for those that come later.
            workers: who gets them; None: all.
        """
        self._version = max(self._version, getattr(self._local_env_runner, "policy_version", 0)) + 1
        shared = {
            f"{actor.WEIGHTS}{pid}": actor.SharedWeights(self._version, values) for pid, values in weights.items()
        }
        self._group.channel.publish({**shared, **others}, workers, self._version)
        self._shared |= others
        return self._version

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
            self._local_env_runner = self._recipe(FIRST, number)()
        if number:
            self._grow(number, waits=config.validate_env_runners_after_construction)
        self._counters.start_clock()

    def _recipe(self, name: Name, number: int, spaces: Any = None) -> partial[Any]:
        """What makes a life of a worker of so many."""
        log_dir = self._logdir and f"{self._logdir}/worker_{name.worker}"
        numbers = {"worker_index": name.worker, "recreated_worker": name.life, "num_workers": number}
        return partial(self._make, **numbers, log_dir=log_dir, spaces=spaces)

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
                self._local_env_runner = self._recipe(FIRST, n, self._ask_first("get_spaces"))()
            filters = {f"{actor.FILTER}{pid}": one for pid, one in self._ask_first("get_filters").items()}
            self._publish(self._ask_first("get_weights"), {**self._shared, **filters})
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
        self._place = where
        return self._group_in(remote, begun)

    def _group_in(self, remote: Backend, begun: int) -> RolloutGroup:
        config, delay = self.config, self.config.delay_between_env_runner_restarts_s
        most = config.max_num_env_runner_restarts if config.restart_failed_env_runners else 0
        survival = Survival(
            Restarts(max_per_worker=most, backoff_s=delay, backoff_max_s=max(delay, LONGEST_DELAY_S)),
            min_workers=1,
            # who is busy inline cannot be ended
            fragment_timeout_s=None if isinstance(remote, InlineBackend) else config.env_runner_hang_timeout_s,
            placement_timeout_s=config.env_runner_restore_timeout_s,
            names=SURVIVAL,
        )
        fleet = Fleet(remote, self._job, begun, survival, first=1)
        return RolloutGroup(fleet, Channel(remote.share), self.config)

    def _job(self, name: Name) -> Job:
        config, number = self.config, max(name.worker, self.config.num_env_runners)
        resources: dict[str, Any] = {}
        if self._place == "ray":
            resources = {"num_cpus": config.num_cpus_per_env_runner, "num_gpus": config.num_gpus_per_env_runner}
            resources["resources"] = dict(config.custom_resources_per_env_runner)
        hang_timeout_s = self._group.fleet.survival.fragment_timeout_s
        make = self._recipe(name, number)
        build = partial(actor.RolloutActor, make, name, make.keywords["log_dir"], hang_timeout_s)
        return Job(build, name, max(1, int(config.num_cpus_per_env_runner)), resources=resources)


def _either(name: str, value: Any, other: str, also: Any) -> Any:
    """What is given by either of two names.

    Raises:
        ValueError: two values.
    """
    if None not in (value, also) and value != also:
        raise ValueError(f"{name}={value!r} and {other}={also!r} are two names of one thing; give one of them")
    return also if value is None else value
