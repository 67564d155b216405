"""The set of workers as users see it: batches out, weights and filters in, policies, and what is known of workers.

WorkerSet ─▶ Workers ─▶ Calls ─▶ RolloutGroup: requests of the remote workers, and what all are to know
                          └▶ local worker

ask the free ─▶ out ─▶ answered ─▶ in order of (worker, request) ─▶ a batch that the caller owns
    ▲             ├─▶ lost: its share is asked for again
    │             ├─▶ raised: raised here, the other fragments stay for the next call
    └─ more? ◀────┴─▶ late: stays out, for the next call
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from operator import methodcaller
from typing import Any, TypeAlias

from swath.errors import FleetFailed, WorkerLate, WorkerLost, warn_of_no_effect
from swath.group.group import Request
from swath.nearest import with_options
from swath.options import count
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.batches.sample_batch import MultiAgentBatch, SampleBatch, concat_samples
from swath.rollout_workers.filters import FilterManager
from swath.rollout_workers.nests import holds_objects, leaves
from swath.rollout_workers.worker.policies import NewPolicy, check_policy_functions
from swath.rollout_workers.worker_set import actor
from swath.rollout_workers.worker_set.calls import TIMEOUT_S, seconds_to_wait
from swath.rollout_workers.worker_set.group import FILTERS
from swath.rollout_workers.worker_set.workers import Workers

Batch: TypeAlias = SampleBatch | MultiAgentBatch

FILTERS_S = 10.0
"""How long each round of a synchronisation of filters is waited for if nobody says."""


class WorkerSet(Workers):
    """Many rollout workers as one; those that die are replaced, and know then what the others know.

    ```python
    config = AlgorithmConfig().env_runners(num_env_runners=4, num_envs_per_env_runner=8).environment("CartPole-v1")
    with WorkerSet(config=config, default_policy_class=PPOTorchPolicy) as workers:
        batch = workers.sample()
        workers.local_worker().learn_on_batch(batch)
        workers.sync_weights()
    ```

    Used by one thread at a time.

    Args:
        env_creator: makes a sub-env of an `EnvContext`; None: from `config.env`.
        validate_env: looks at each sub-env, and raises if it does not like it.
        default_policy_class: of policies without one.
        config: an `AlgorithmConfig`, a dict, or None for defaults; copied.
        num_workers: remote workers, with ids from 1; None: `config.num_env_runners`.
        backend: `"ray"`, `"process"` or `"inline"`; None: Ray if it is up in this process, else processes.
        local_worker: build worker 0 in this process; it is always built if there are no others.
        logdir: workers write to folders in it; None: nothing is written.
        num_env_runners: another name of `num_workers`.
        local_env_runner: another name of `local_worker`.
        _setup: False builds no worker.

    Raises:
        ValueError: there is nothing to make envs with, no such backend, or it cannot give what the config asks for.
        RuntimeError: the backend needs a package that is not installed.
        WorkerLate: a worker was not ready in time.
        Exception: what building a worker raised. Nothing is left of the others then.
    """

    def sample(
        self,
        *,
        min_env_steps: int | None = None,
        min_agent_steps: int | None = None,
        concat: bool = True,
        timeout_seconds: float | None = None,
    ) -> Batch | list[Batch]:
        """Collect from all remote workers, or from the local one if there are none.

        Args:
            min_env_steps: collect until there are so many; None: one fragment of each worker.
            min_agent_steps: likewise, steps of agents.
            concat: one batch; False: a list of those of the workers, in order of worker and request.
            timeout_seconds: None: `config.sample_timeout_s`. Fragments that are late then are part of the next batch.

        Raises:
            ValueError: both numbers of steps are given, or there is no worker.
            WorkerLate: no fragment was there in time.
            WorkerLost: a worker died, and that is not tolerated; where it is, others collect its share.
            FleetFailed: no workers are left.
            Exception: what an env or a policy raised, one of each call, others are among the events; what was
                collected before is part of the next batch.
        """
        kind, number = ("env_steps", min_env_steps) if min_agent_steps is None else ("agent_steps", min_agent_steps)
        if None not in (min_env_steps, min_agent_steps):
            raise ValueError("steps of envs and steps of agents are two ways to end; give one of them")
        least, steps_of = 0 if number is None else count(f"min_{kind}", number), methodcaller(kind)
        timeout = seconds_to_wait(timeout_seconds, self.config.sample_timeout_s)
        group, batches = self._open(), self.kept_batches
        if not group.ids() and self._local_env_runner is None:
            raise ValueError("this set has no worker; give num_workers or local_worker=True, or call add_workers(n)")
        if group.ids():
            began = time.monotonic()
            fragments = group.fragments(max(0, least - sum(map(steps_of, batches))), steps_of, timeout)
            self._counters.seconds_waiting += time.monotonic() - began
            batches += self._owned(fragments, concat)
        while not batches or (not group.ids() and sum(map(steps_of, batches)) < least):
            batches.append(self._local_env_runner.sample())
        self.kept_batches = []
        self._counters.deliver(sum(batch.env_steps() for batch in batches))
        if not concat:
            return batches
        return batches[0] if len(batches) == 1 else concat_samples(batches)

    def sync_weights(
        self,
        policies: str | Collection[str] | None = None,
        from_worker: Any = None,
        to_worker_indices: Sequence[int] | None = None,
        global_vars: Mapping[str, Any] | None = None,
        timeout_seconds: float | None = 0.0,
        inference_only: bool = False,
        *,
        from_worker_or_learner_group: Any = None,
    ) -> int:
        """Make weights the newest, which remote workers apply before their next fragment.

        Args:
            policies: whose, an id or several; None: of all. Others keep theirs.
            from_worker: whence, anything with `get_weights`; None: the local worker. It gets them, too, if it is not
                the source.
            to_worker_indices: which remote workers get them; None: all.
            global_vars: go with them, and to the local worker.
            timeout_seconds: until they are applied by all; 0: nobody waits for that; None: 300.
            inference_only: without effect: post-processing needs all weights.
            from_worker_or_learner_group: another name of `from_worker`.

        Returns:
            The version that they are.

        Raises:
            TypeError: there is no source.
            WorkerLate: some workers have not applied them in time; they do before their next fragment.
            Exception: what a worker raised when it applied them.
        """
        timeout = seconds_to_wait(timeout_seconds)
        if inference_only:
            warn_of_no_effect("inference_only", "post-processing needs all weights")
        group, local = self._open(), self._local_env_runner
        source = next((each for each in (from_worker, from_worker_or_learner_group, local) if each is not None), None)
        if source is None:
            raise TypeError("there is no local worker to take weights from; give from_worker, with get_weights()")
        wanted = [policies] if isinstance(policies, str) else policies
        weights = source.get_weights() if wanted is None else source.get_weights(wanted)
        addressed = None if to_worker_indices is None else self._addressed(to_worker_indices)
        known = self._shared.get(actor.GLOBAL_VARS, {})
        told = {} if global_vars is None else {actor.GLOBAL_VARS: {**known, **global_vars}}
        version = self._publish(weights, told, addressed)
        if local is not None and source is not local:
            local.set_weights(weights, global_vars, version)
        elif local is not None and global_vars is not None:
            local.set_global_vars(global_vars)
        if timeout:
            group.update([each for each in group.fleet.up if addressed is None or each in addressed], timeout)
        return version

    def applied_versions(self) -> dict[int, int]:
        """The version of the weights that each remote worker is known to have, by id."""
        group = self._open()
        return {worker: group.versions[worker] for worker in group.ids()}

    def sync_filters(self, timeout_seconds: float | None = None) -> None:
        """Have all filters equal one that has seen what all workers saw.

        Whether workers' observations count, or are thrown away, and whether workers get the result, is up to
        `use_worker_filter_stats` and `update_worker_filter_stats` of the config.

        Args:
            timeout_seconds: of each of the two rounds; None: 10.

        Raises:
            WorkerLate: workers have not answered in time; what the others saw is taken in.
            Exception: what a worker raised, likewise.
        """
        local, counts = self._local_env_runner, self.config.use_worker_filter_stats
        own = actor.by_policy(self._shared, actor.FILTER) if local is None else local.filters
        FilterManager.synchronize(own, self, timeout_seconds=timeout_seconds, use_remote_data_for_update=counts)

    def collect_filters(
        self, timeout_seconds: float | None = None
    ) -> tuple[list[Mapping[str, Any]], list[BaseException]]:
        """Filters of remote workers, with what each has seen since it was last asked in its buffer, which is emptied.

        Args:
            timeout_seconds: for all answers together; None: 10.

        Returns:
            Filters by policy id, and why there are none of some workers, unless their loss is tolerated.
        """
        timeout, group = seconds_to_wait(timeout_seconds, FILTERS_S), self._open(losses=False)
        earlier, call = group.tagged([FILTERS]), ("run", "get_filters", {"flush_after": True})
        replies = group.replies(dict.fromkeys(group.fleet.up, call), timeout, FILTERS)
        replies += [group.reply(request) for request in earlier if request.ticket.done]
        late = f"said within {timeout:g} s what their filters have seen; it is taken in the next time"
        return [one.result for one in replies if one.error is None], group.failures(replies, late, timeout)

    def send_filters(self, filters: Mapping[str, Any], timeout_seconds: float | None = None) -> None:
        """Have remote workers take these over, if the config says so, and those that come later.

        Raises:
            WorkerLate: some have not in time; they do before their next fragment.
            Exception: what a worker raised.
        """
        timeout, group = seconds_to_wait(timeout_seconds, FILTERS_S), self._open()
        self._share({f"{actor.FILTER}{policy_id}": one for policy_id, one in filters.items()})
        if timeout and self.config.update_worker_filter_stats:
            group.update(group.fleet.up, timeout)

    @with_options(NewPolicy)
    def add_policy(self, new: NewPolicy) -> None:  # noqa: D417  its fields are the arguments
        """Add a policy to all workers, and to those that come later: all of it, or nothing.

        Args:
            policy_id: a new one.
            policy_cls: what to build.
            policy: or a policy: the local worker gets it as it is, the others get copies.
            observation_space: None: as the worker finds it.
            action_space: likewise.
            config: settings over the worker's.
            policy_state: set right after it is built.
            policy_mapping_fn: from now on, for new episodes.
            policies_to_train: from now on.
            module_spec: only None: there are no modules here.

        Raises:
            KeyError: the id is taken.
            ValueError: not exactly one of class and policy; a `module_spec`.
            Exception: what building it raised, in the first worker by id; then no worker has it.
        """
        key, local = f"{actor.POLICY}{new.policy_id}", self._local_env_runner
        if new.policy_id in (known := self._policy_ids()):
            raise KeyError(f"policy_id={new.policy_id!r} is taken; there are {sorted(known)}")
        alone = replace(new, policy_mapping_fn=None, policies_to_train=None)
        if local is not None:
            local.add_policy(**vars(alone))
        try:
            self._change({key: vars(alone.for_other_workers())}, here=False)
            self._arrange(new.policy_mapping_fn, new.policies_to_train)
        except (WorkerLate, WorkerLost, FleetFailed):  # the others have it, and those that come back will
            raise
        except Exception:
            self._change({key: {}})
            raise

    def remove_policy(
        self,
        *,
        policy_id: str = DEFAULT_POLICY_ID,
        policy_mapping_fn: Callable[..., str] | None = None,
        policies_to_train: Any = None,
    ) -> None:
        """Remove a policy from all workers, and from those that come later.

        Args:
            policy_id: which.
            policy_mapping_fn: from now on, for new episodes.
            policies_to_train: from now on.

        Raises:
            ValueError: there is no such policy.
        """
        if policy_id not in (known := self._policy_ids()):
            raise ValueError(f"policy_id={policy_id!r} is unknown; there are {sorted(known)}")
        self._arrange(policy_mapping_fn, policies_to_train, **{f"{actor.POLICY}{policy_id}": {}})

    def set_policy_mapping_fn(self, policy_mapping_fn: Callable[..., str] | None = None) -> None:
        """Set in all workers, also later ones, which policy acts for whom in new episodes; None changes nothing.

        Raises:
            ValueError: it cannot be called.
        """
        self._arrange(policy_mapping_fn, None)

    def set_is_policy_to_train(self, is_policy_to_train: Any) -> None:
        """Set in all workers, also later ones, which policies learn.

        Args:
            is_policy_to_train: a list, set or tuple of ids, or `f(policy_id, batch=None) -> bool`.

        Raises:
            TypeError: anything else.
        """
        if is_policy_to_train is None:
            raise TypeError("is_policy_to_train=None: give ids, or f(policy_id, batch=None) -> bool")
        self._arrange(None, is_policy_to_train)

    def is_policy_to_train(self, policy_id: str, batch: Any = None) -> bool:
        """Whether a policy learns."""
        return policy_id in self._ask_first("get_policies_to_train", batch=batch)

    def _policy_ids(self) -> set[str]:
        """Of the policies that all workers have."""
        self._open()
        if self._local_env_runner is not None:
            return set(self._local_env_runner.policy_map)
        return {
            pid for pid, how in {**self.config.policies, **actor.by_policy(self._shared, actor.POLICY)}.items() if how
        }

    def _arrange(self, mapping: Any, to_train: Any, **removed: Any) -> None:
        """Set who acts for whom and who learns, where it is not None, and remove policies: `{POLICY…: {}}`."""
        check_policy_functions(mapping, to_train)
        told = {actor.MAPPING: mapping, actor.TO_TRAIN: to_train}
        self._change({**removed, **{key: value for key, value in told.items() if value is not None}})

    def _change(self, changes: Mapping[str, Any], *, here: bool = True) -> None:
        """Have workers that are free take changes of policies; others do before they do anything else.

        Args:
            changes: by the keys of the channel.
            here: also in the local worker.
        """
        group, local = self._open(), self._local_env_runner
        self._share(changes)
        for policy_id in [each for each, how in actor.by_policy(changes, actor.POLICY).items() if not how]:
            self._shared.pop(f"{actor.FILTER}{policy_id}", None)
            group.channel.withdraw([f"{actor.WEIGHTS}{policy_id}", f"{actor.FILTER}{policy_id}"])
        if here and local is not None:
            actor.take_policies(local, changes)
        group.update(group.free(), TIMEOUT_S)

    def _owned(self, fragments: Sequence[Request], concat: bool) -> list[Batch]:
        """The batches, joined if asked for; the caller's own. The fragments are closed."""
        views: list[Batch] = [one.asked.batch for one in fragments]
        try:
            for part in [part for batch in views for part in batch.as_multi_agent().policy_batches.values()]:
                for name, column in part.items():
                    if any(holds_objects(leaf) for _, leaf in leaves(column)):  # which may hold arrays that are views
                        part[name] = copy.deepcopy(column)
            return [concat_samples(views)] if concat and len(views) > 1 else [batch.copy() for batch in views]
        finally:
            for request in fragments:
                self._group.close(request)


EnvRunnerGroup = WorkerSet


def synchronous_parallel_sample(
    *,
    worker_set: WorkerSet,
    max_env_steps: int | None = None,
    max_agent_steps: int | None = None,
    concat: bool = True,
) -> Batch | list[Batch]:
    """Collect with all workers of a set, as its `sample` does.

    Args:
        worker_set: the workers.
        max_env_steps: until there are so many env steps; None: one fragment of each worker.
        max_agent_steps: likewise, of agents.
        concat: one batch; False: a list.

    Raises:
        ValueError: both limits were given.
    """
    return worker_set.sample(min_env_steps=max_env_steps, min_agent_steps=max_agent_steps, concat=concat)
