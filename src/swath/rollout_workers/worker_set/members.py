"""The workers of a set, local and remote: their start, and their common variables.

change ─▶ channel ─▶ with the next request to each worker ─▶ `RolloutActor`, also of later lives and workers
       └▶ local worker
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from swath.errors import Closed, FleetFailed, PlacementFailed, WorkerLate, WorkerLost, warn
from swath.group.group import Counters
from swath.options import Restarts, Survival
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.worker.policies import NewPolicy, check_policy_functions
from swath.rollout_workers.worker_set import actor
from swath.rollout_workers.worker_set.calls import TIMEOUT_S
from swath.rollout_workers.worker_set.group import Batch, RolloutGroup
from swath.weights.channel import Channel
from swath.workers.base import Backend, Job
from swath.workers.create import backend
from swath.workers.fleet import Fleet
from swath.workers.fleet_state import FIRST_LIFE
from swath.workers.local import InlineBackend
from swath.workers.tickets import Name

LONGEST_DELAY_S = 30.0
SETTING_NAMES = {
    "fragment_timeout_s": "env_runner_hang_timeout_s",
    "placement_timeout_s": "env_runner_restore_timeout_s",
}
"""Settings by their names in the fleet."""

PRELOAD = [f"swath.rollout_workers.{module}" for module in ("worker_set.actor", "worker.worker", "policies.torch")]
"""Modules that most workers need."""


class Members:
    """The workers of a set.

    Args:
        config: of the set; it says how many there are, and is changed with their number.
        make: builds a worker.
        log_dir: workers write to folders in it; None: nothing is written.
        place: name of the backend; None: Ray if it runs in this process, else processes.
        report: called with the ids of workers that came back.
        wants_local: a local worker is built even if it has no env.

    Attributes:
        local: worker 0, or None.
        group: the remote workers.
        shared: what later workers get besides weights, by the keys of the channel.
        is_stopped: whether they were stopped.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        make: Callable[..., Any],
        log_dir: str | None,
        place: str | None,
        report: Callable[[list[int]], None],
        *,
        wants_local: bool,
    ) -> None:
        self._config, self._make, self._log_dir, self._place = config, make, log_dir, place
        self._report, self._wants_local = report, wants_local
        self.local: Any = None
        self.group: RolloutGroup = self._group_in(InlineBackend(), 0)  # a group without workers
        self.shared: dict[str, Any] = {}
        self._kept: list[Batch] = []  # collected by a `sample` that raised afterwards
        self.is_stopped = False

    def build(self) -> None:
        """Build all workers that the config asks for; raise what building one of them raised."""
        config, number = self._config, self._config.num_env_runners
        has_env = not number or config.create_local_env_runner or config.create_env_on_local_worker
        if self._wants_local and has_env:
            self.local = self._maker(FIRST_LIFE, number)()
        if number:
            self.grow(number, waits=config.validate_env_runners_after_construction)

    def grow(self, n: int, *, waits: bool = True) -> None:
        """Start `n` more remote workers, and wait for them unless `waits` is false.

        Raises:
            WorkerLate: some were not ready in time.
            Exception: what building one raised. In both cases none is added.
        """
        are_first = not self.group.fleet.statuses()
        self._config.num_env_runners = len(self.group.ids()) + n
        if are_first:
            version = self.group.channel.version
            self.group = self._remote_group(0 if waits else n)
            self.group.channel.publish({}, version=version)
        try:
            self.group.fleet.add(n if waits else 0)
        except PlacementFailed as failure:
            deadline = self.group.fleet.survival.placement_timeout_s
            raise WorkerLate(f"{failure}; all are ended", deadline=deadline) from failure
        finally:
            self._config.num_env_runners = len(self.group.ids())
        if are_first:
            if self._wants_local and self.local is None:
                self.local = self._maker(FIRST_LIFE, n, self.ask_first("get_spaces"))()
            filters = {f"{actor.FILTER}{pid}": filter_ for pid, filter_ in self.ask_first("get_filters").items()}
            self.publish({**self.shared, **filters}, self.ask_first("get_weights"))
            if waits:
                self.group.update(self.group.fleet.up, self._config.env_runner_restore_timeout_s)
        self._share_number()

    def remove(self, worker_ids: Sequence[int]) -> None:
        """End remote workers for good."""
        group = self.group
        group.drop(worker_ids)
        group.removed |= {*worker_ids}
        for worker in worker_ids:
            group.fleet.retire(worker)
            group.channel.forget(worker)
        self._share_number()

    def look(self, *, losses: bool = True) -> RolloutGroup:
        """Return the remote workers as they are now, after a report of the workers that came back.

        Args:
            losses: raise losses that are not tolerated.

        Raises:
            Closed: the set was stopped.
            FleetFailed: too few are left, or too many died in a row.
            WorkerLost: a worker died, and that is not tolerated.
        """
        if self.is_stopped:
            raise Closed("the set was stopped; build another WorkerSet")
        group = self.group
        group.fleet.process_events()
        if group.unreported:
            returned, group.unreported = sorted(group.unreported), []
            self._report(returned)
        if losses:
            group.raise_losses()
        return group

    def sample(
        self, min_steps: int, steps_of: Callable[[Any], int], timeout: float, *, concat: bool, counters: Counters
    ) -> list[Batch]:
        """Return batches of at least so many steps, one per fragment unless `concat`; see `WorkerSet.sample`."""
        group, batches = self.look(), self._kept
        if not group.ids() and self.local is None:
            raise ValueError("this set has no worker; give num_workers or local_worker=True, or call add_workers(n)")
        if group.ids():
            start = time.monotonic()
            fragments = group.fragments(max(0, min_steps - sum(map(steps_of, batches))), steps_of, timeout)
            counters.seconds_waiting += time.monotonic() - start
            batches += group.take_batches(fragments, concat)
        while not batches or (not group.ids() and sum(map(steps_of, batches)) < min_steps):
            batches.append(self.local.sample())
        self._kept = []
        return batches

    def stop(self, timeout: float) -> None:
        """Close the envs of all workers and end them."""
        self.is_stopped = True
        try:
            for error in self.group.fleet.close(timeout):
                warn(f"a worker raised when it was closed: {error!r}")
        finally:
            if self.local is not None:
                self.local.stop()

    def ask_first(self, method: str, **keywords: Any) -> Any:
        """Call a method of the local worker, or of the first remote one that can be called.

        Raises:
            WorkerLate: it does not answer in time.
            FleetFailed: there is no worker.
            Exception: what it raised.
        """
        if self.local is not None:
            return getattr(self.local, method)(**keywords)
        return self.group.call_first("run", method, keywords)[1]

    def publish(
        self, values: Mapping[str, Any], weights: Mapping[str, Any] | None = None, workers: Sequence[int] | None = None
    ) -> int:
        """Publish values to remote workers, also to later ones; return the version of their weights.

        Args:
            values: by the keys of the channel.
            weights: published with them, by policy id; their version is above all earlier ones. None: no weights.
            workers: which workers get both; None: all.

        Raises:
            TypeError: something cannot be pickled for the backend; nothing is published.
        """
        channel, shared = self.group.channel, dict(values)
        version = channel.version
        if weights is not None:
            version = max(version, getattr(self.local, "policy_version", 0)) + 1
            shared |= {f"{actor.WEIGHTS}{pid}": actor.SharedWeights(version, arrays) for pid, arrays in weights.items()}
        channel.publish(shared, workers, version)
        self.shared |= values
        return version

    def sync_weights(
        self, source: Any, weights: Any, global_vars: Mapping[str, Any] | None, workers: Sequence[int] | None
    ) -> int:
        """Publish weights of a source with global variables, give both to the local worker, and return the version."""
        present = self.shared.get(actor.GLOBAL_VARS, {})
        others = {} if global_vars is None else {actor.GLOBAL_VARS: {**present, **global_vars}}
        version = self.publish(others, weights, workers)
        if self.local is not None and source is not self.local:
            self.local.set_weights(weights, global_vars, version)
        elif self.local is not None and global_vars is not None:
            self.local.set_global_vars(global_vars)
        return version

    def policy_ids(self) -> set[str]:
        """Return the ids of the policies that all workers have."""
        self.look()
        if self.local is not None:
            return set(self.local.policy_map)
        specs = {**self._config.policies, **actor.by_policy(self.shared, actor.POLICY)}
        return {policy_id for policy_id, spec in specs.items() if spec}

    def add_policy(self, new: NewPolicy) -> None:
        """Add a policy to all workers, all or nothing."""
        key = f"{actor.POLICY}{new.policy_id}"
        policy = replace(new, policy_mapping_fn=None, policies_to_train=None)
        if self.local is not None:
            self.local.add_policy(**vars(policy))
        try:
            self.change_policies({key: vars(policy.for_other_workers())}, in_local=False)
            self.set_policy_functions(new.policy_mapping_fn, new.policies_to_train)
        except (WorkerLate, WorkerLost, FleetFailed):  # the other workers have it, and later lives will
            raise
        except Exception:
            self.change_policies({key: {}})
            raise

    def set_policy_functions(self, mapping: Any, to_train: Any, removed: str | None = None) -> None:
        """Set which policy acts for an agent and which learn, unless None; also remove a policy, if its id is given."""
        self.look()
        check_policy_functions(mapping, to_train)
        functions = {actor.MAPPING: mapping, actor.TO_TRAIN: to_train}
        changes: dict[str, Any] = {} if removed is None else {f"{actor.POLICY}{removed}": {}}
        self.change_policies({**changes, **{key: value for key, value in functions.items() if value is not None}})

    def change_policies(self, changes: Mapping[str, Any], *, in_local: bool = True) -> None:
        """Apply changes of policies in free workers now, and in busy ones before their next work.

        Args:
            changes: by the keys of the channel.
            in_local: also in the local worker.
        """
        group = self.group
        self.publish(changes)
        for policy_id in [pid for pid, keywords in actor.by_policy(changes, actor.POLICY).items() if not keywords]:
            self.shared.pop(f"{actor.FILTER}{policy_id}", None)
            group.channel.withdraw([f"{actor.WEIGHTS}{policy_id}", f"{actor.FILTER}{policy_id}"])
        if in_local and self.local is not None:
            actor.change_policies(self.local, changes)
        group.update(group.free(), TIMEOUT_S)

    def _share_number(self) -> None:
        """Tell all workers, also later ones, how many remote workers there are."""
        self._config.num_env_runners = number = len(self.group.ids())
        if self.local is not None:
            self.local.num_workers = number
        self.publish({actor.NUM_WORKERS: number})

    def _maker(self, name: Name, number: int, spaces: Any = None) -> partial[Any]:
        """Return the function that builds a life of a worker in a set of `number` remote workers."""
        log_dir = self._log_dir and f"{self._log_dir}/worker_{name.worker}"
        numbers = {"worker_index": name.worker, "recreated_worker": name.life, "num_workers": number}
        return partial(self._make, **numbers, log_dir=log_dir, spaces=spaces)

    def _remote_group(self, n_started: int) -> RolloutGroup:
        """Return a group in the backend; start `n_started` workers at once, without waiting for them."""
        ray = sys.modules.get("ray")
        place = self._place or ("ray" if ray is not None and ray.is_initialized() else "process")
        if place != "ray" and (resources := self._config.custom_resources_per_env_runner):
            raise ValueError(f"custom_resources_per_env_runner={resources} are on Ray only, not with backend={place!r}")
        try:
            remote = backend(place, preload=PRELOAD)
        except ImportError as error:
            raise RuntimeError(f"backend={place!r} cannot be used: {error}") from error
        self._place = place
        return self._group_in(remote, n_started)

    def _group_in(self, remote: Backend, n_started: int) -> RolloutGroup:
        config, delay = self._config, self._config.delay_between_env_runner_restarts_s
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
        config = self._config
        resources: dict[str, Any] = {}
        if self._place == "ray":
            resources = {"num_cpus": config.num_cpus_per_env_runner, "num_gpus": config.num_gpus_per_env_runner}
            resources["resources"] = dict(config.custom_resources_per_env_runner)
        make = self._maker(name, max(name.worker, config.num_env_runners))
        build = partial(actor.RolloutActor, make, name, make.keywords["log_dir"], hang_timeout_s)
        return Job(build, name, max(1, int(config.num_cpus_per_env_runner)), resources=resources)
