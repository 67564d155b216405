"""How a set collects, and how its workers get weights and filters.

ask the free ─▶ out ─▶ answered ─▶ in order of (worker, request) ─▶ a batch that the caller owns
    ▲             ├─▶ lost: its share is asked for again
    │             ├─▶ raised: raised here, the other fragments stay for the next call
    └─ more? ◀────┴─▶ late: stays out, for the next call
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import methodcaller
from typing import Any, TypeAlias

from swath.errors import PayloadLost, WorkerLate, WorkerLost, warn_of_no_effect
from swath.group.group import Request
from swath.options import count
from swath.rollout_workers.batches.multi_agent_batch import MultiAgentBatch, concat_samples
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.filters import copies_of
from swath.rollout_workers.nests import holds_objects, leaves
from swath.rollout_workers.worker_set.actor import FILTER
from swath.rollout_workers.worker_set.calls import Calls
from swath.rollout_workers.worker_set.group import FILTERS, FRAGMENT, Purpose
from swath.rollout_workers.worker_set.workers import seconds_to_wait

Batch: TypeAlias = SampleBatch | MultiAgentBatch

FILTERS_S = 10.0
"""How long each round of a synchronisation of filters is waited for if nobody says."""


class Sampling(Calls):
    """Batches out, weights and filters in."""

    _forgiven = 0  # the last request that was made when something else was raised

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
        self._require_workers()
        missing = least - sum(map(steps_of, batches))
        if group.ids() and (missing > 0 or not least):
            batches += self._owned(self._collected(max(0, missing), steps_of, timeout), concat)
        while not group.ids() and (not batches or sum(map(steps_of, batches)) < least):
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
        version = self._publish(weights, addressed, global_vars)
        if local is not None and source is not local:
            local.set_weights(weights, global_vars, version)
        elif local is not None and global_vars is not None:
            local.set_global_vars(global_vars)
        if timeout:
            group.update([each for each in group.fleet.up if addressed is None or each in addressed], timeout)
        return version

    def applied_versions(self) -> dict[int, int]:
        """The version of the weights that each remote worker is known to have, by id."""
        return self._open().known_versions()

    def sync_filters(self, timeout_seconds: float | None = None) -> None:
        """Have all filters equal one that has seen what all workers saw.

        Whether workers' observations count, and whether workers get the result, is up to `use_worker_filter_stats` and
        `update_worker_filter_stats` of the config. Where they do not count, each worker keeps its own on top of what it
        gets; RLlib's `FilterManager.synchronize(use_remote_data_for_update=False)` throws them away.

        Args:
            timeout_seconds: of each of the two rounds; None: 10.

        Raises:
            WorkerLate: workers have not answered in time; what the others saw is taken in.
            Exception: what a worker raised, likewise.
        """
        timeout, failures = seconds_to_wait(timeout_seconds, FILTERS_S), list[BaseException]()
        own = self._seen if self._local_env_runner is None else self._local_env_runner.filters
        if self.config.use_worker_filter_stats:
            theirs, failures = self.collect_filters(timeout)
            for policy_id, seen in [item for filters in theirs for item in filters.items()]:
                if policy_id in own:
                    own[policy_id].apply_changes(seen)
                elif self._local_env_runner is None:
                    own[policy_id] = seen
            for each in self._seen.values():
                each.reset_buffer()
        self.send_filters(copies_of(own), timeout)
        for failure in failures:
            raise failure

    def collect_filters(
        self, timeout_seconds: float | None = None
    ) -> tuple[list[Mapping[str, Any]], list[BaseException]]:
        """Filters of remote workers, with what each has seen since it was last asked in its buffer, which is emptied.

        Args:
            timeout_seconds: for all answers together; None: 10.

        Returns:
            Filters by policy id, and why there are none of some workers, unless their loss is tolerated.
        """
        timeout, flush = seconds_to_wait(timeout_seconds, FILTERS_S), {"flush_after": True}
        replies = self.foreach_worker_async_fetch_ready("get_filters", tag=FILTERS, kwargs=flush, on_error="return")
        replies += self.fetch_ready_async_reqs(tags=[FILTERS], timeout_seconds=timeout, on_error="return")
        group = self._group
        failures = [one.error for one in replies if one.error and not group.is_tolerated(one.error)]
        if late := group.unanswered([FILTERS]):
            group.set_overdue(late)
            who = tuple(one.worker for one in late)
            why = f"workers {list(who)} have not said within {timeout:g} s what their filters have seen"
            failures.append(WorkerLate(f"{why}; it is taken in the next time", workers=who, deadline=timeout))
        return [one.result for one in replies if one.error is None], failures

    def send_filters(self, filters: Mapping[str, Any], timeout_seconds: float | None = None) -> None:
        """Have remote workers take these over, if the config says so, and those that come later.

        Raises:
            WorkerLate: some have not in time; they do before their next fragment.
            Exception: what a worker raised.
        """
        timeout, group = seconds_to_wait(timeout_seconds, FILTERS_S), self._open()
        self._share({f"{FILTER}{policy_id}": one for policy_id, one in filters.items()})
        if timeout and self.config.update_worker_filter_stats:
            group.update(group.fleet.up, timeout)

    def _collected(self, least: int, steps_of: Callable[[Batch], int], timeout: float) -> list[Request]:
        """Have workers sample until there is enough. What is out, or there before, or after an exception, counts.

        Args:
            least: how many steps are enough; 0: one fragment per worker.
            steps_of: counts those of a batch.
            timeout: how long that may take, in seconds.

        Returns:
            The fragments that are in time, in order; they are to be closed.

        Raises:
            WorkerLate: none was in time.
            WorkerLost: a worker was lost, and that is not tolerated.
            Exception: what an env or a policy raised. In all cases other fragments stay for the next call.
        """
        group, config, wanted = self._group, self.config, least or len(self._group.ids())

        def share(one: Request) -> int:
            if not least:
                return 1
            if one.reply is not None:
                return steps_of(one.asked.batch)
            return config.get_rollout_fragment_length(one.worker) * config.num_envs_per_env_runner

        def made() -> list[Request]:
            return [one for one in group.tagged([FRAGMENT]) if one.reply is not None]

        def is_over() -> bool:
            for request in [one for one in group.tagged([FRAGMENT]) if one.answered]:
                self._open_fragment(request)
            while sum(map(share, group.tagged([FRAGMENT]))) < wanted and self._ask_another():
                pass
            return sum(map(share, made())) >= wanted

        began = time.monotonic()
        group.wait_until(is_over, timeout)
        self._counters.seconds_waiting += time.monotonic() - began
        fragments, missing = made(), group.unanswered([FRAGMENT])
        if sum(map(share, fragments)) < wanted:
            group.set_overdue(missing)
        if not fragments:
            late = tuple(sorted({one.worker for one in missing} or group.ids()))
            why = f"no fragment of workers {list(late)} was there within {timeout:g} s (sample_timeout_s)"
            raise WorkerLate(f"{why}; they are delivered later", workers=late, deadline=timeout)
        return sorted(fragments, key=lambda one: (one.worker, one.number))

    def _ask_another(self) -> bool:
        """Ask who is free and has given least; whether there is one."""
        group, fragments = self._group, self._group.tagged([FRAGMENT])
        busy, given = {one.worker for one in fragments if one.reply is None}, Counter(one.worker for one in fragments)
        free = [worker for worker in group.fleet.up if worker not in busy and group.is_free(worker)]
        if free:
            group.request(min(free, key=lambda each: (given[each], each)), "sample", asked=Purpose(FRAGMENT))
        return bool(free)

    def _open_fragment(self, request: Request) -> None:
        """Open an answer; what is lost, or was asked for before something else was raised, is out no more.

        Raises:
            Exception: what the worker raised.
        """
        group = self._group
        error = group.reply(request).error
        if error is None:
            return
        is_lost = isinstance(error, PayloadLost | WorkerLost | WorkerLate)
        if is_lost:
            group.fragments_lost += 1
            group.fleet.look([request.ticket])  # it may have died since the last look, and is not to be asked again
        is_borne = group.tolerates if is_lost else request.number <= self._forgiven
        if not (is_borne or isinstance(error, PayloadLost)):
            self._forgiven = self._forgiven if is_lost else group.last_number
            raise error
        group.note(request.name, "discarded", f"a fragment: {error}")

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


def synchronous_parallel_sample(
    *,
    worker_set: Sampling,
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
