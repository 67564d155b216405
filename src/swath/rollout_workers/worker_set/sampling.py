"""How a set collects, and how its workers get weights and filters.

ask the free ─▶ out ─▶ answered ─▶ in order of (worker, request) ─▶ a batch that the caller owns
    ▲             ├─▶ lost: its share is asked for again
    │             ├─▶ raised: raised here, the other fragments stay for the next call
    └─ more? ◀────┴─▶ late: stays out, for the next call
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from swath.errors import PayloadLost, WorkerLate, WorkerLost, warn_of_no_effect
from swath.group.request import Request
from swath.options import count
from swath.rollout_workers.batches.joining import concat_samples
from swath.rollout_workers.batches.leaves import holds_objects, leaves
from swath.rollout_workers.batches.multi_agent import MultiAgentBatch
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.filters.sharing import copies_of
from swath.rollout_workers.worker_set.actor import FILTER
from swath.rollout_workers.worker_set.calls import fetched
from swath.rollout_workers.worker_set.group import Purpose, RolloutGroup
from swath.rollout_workers.worker_set.workers import Workers, seconds_to_wait
from swath.workers.outcome import Error, Value

Batch: TypeAlias = SampleBatch | MultiAgentBatch

FILTERS_S = 10.0
"""How long each round of a synchronisation of filters is waited for if nobody says."""

_FLUSHED = object()
"""The tag of filters that came too late: what they have seen is part of the next synchronisation."""


class Sampling:
    """Batches out, weights and filters in."""

    _workers: Workers

    def sample(
        self, *, min_env_steps: int | None = None, concat: bool = True, timeout_seconds: float | None = None
    ) -> Batch | list[Batch]:
        """Collect from all remote workers, or from the local one if there are none.

        Args:
            min_env_steps: collect until there are so many; None: one fragment of each worker.
            concat: one batch; False: a list of those of the workers, in order of worker and request.
            timeout_seconds: None: `config.sample_timeout_s`. Fragments that are late then are part of the next batch.

        Raises:
            WorkerLate: no fragment was there in time.
            WorkerLost: a worker died, and that is not tolerated; where it is, others collect its share.
            FleetFailed: no workers are left.
            Exception: what an env or a policy raised; the other fragments are part of the next batch.
        """
        if min_env_steps is not None:
            count("min_env_steps", min_env_steps)
        workers = self._workers
        timeout = seconds_to_wait(timeout_seconds, workers.config.sample_timeout_s)
        group = workers.open()
        if group.ids():
            there = FragmentCollection(group, workers, min_env_steps).collect(timeout)
            workers.counters.deliver(sum(one.asked.steps for one in there))
            return _joined(group, there, concat=concat)
        if workers.local is None:
            raise ValueError("sample() needs a worker, and this set has none; give num_workers or local_worker=True")
        batches: list[Batch] = [workers.local.sample()]
        while min_env_steps is not None and sum(batch.env_steps() for batch in batches) < min_env_steps:
            batches.append(workers.local.sample())
        workers.counters.deliver(sum(batch.env_steps() for batch in batches))
        return _as_asked(batches, concat=concat)

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
        local, group = self._workers.local, self._workers.open()
        source = from_worker if from_worker is not None else from_worker_or_learner_group
        source = local if source is None else source
        if source is None:
            raise TypeError("there is no local worker to take weights from; give from_worker, with get_weights()")
        wanted = [policies] if isinstance(policies, str) else policies
        weights = source.get_weights() if wanted is None else source.get_weights(wanted)
        addressed = None if to_worker_indices is None else self._workers.addressed(to_worker_indices)
        version = self._workers.publish(weights, addressed, global_vars)
        if local is not None and source is not local:
            local.set_weights(weights, global_vars, version)
        elif local is not None and global_vars is not None:
            local.set_global_vars(global_vars)
        if timeout:
            group.update([each for each in group.fleet.up if addressed is None or each in addressed], timeout)
        return version

    def applied_versions(self) -> dict[int, int]:
        """The version of the weights that each remote worker is known to have, by id."""
        return self._workers.open().known_versions()

    def sync_filters(self, timeout_seconds: float | None = None) -> None:
        """Have all filters equal one that has seen what all workers saw.

        Whether workers' observations count, and whether workers get the result, is up to `use_worker_filter_stats` and
        `update_worker_filter_stats` of the config.

        Args:
            timeout_seconds: of each of the two rounds; None: 10.

        Raises:
            WorkerLate: workers have not answered in time; what the others saw is taken in.
            Exception: what a worker raised, likewise.
        """
        timeout, failures = seconds_to_wait(timeout_seconds, FILTERS_S), list[BaseException]()
        if self._workers.config.use_worker_filter_stats:
            theirs, failures = self.collect_filters(timeout)
            self._take_in(theirs)
        local = self._workers.local
        self.send_filters(copies_of(self._workers.filters) if local is None else local.get_filters(), timeout)
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
        timeout, group = seconds_to_wait(timeout_seconds, FILTERS_S), self._workers.open()
        flush = ("run", "get_filters", {"flush_after": True})
        outcomes = group.ask_each(dict.fromkeys(group.fleet.up, flush), timeout, tag=_FLUSHED)
        late = fetched(group, [_FLUSHED], 0, "return")
        seen = [reply.result for reply in late if reply.error is None]  # what was seen first comes first
        seen += [each.value for each in outcomes.values() if isinstance(each, Value)]
        errors = [outcome.exception for outcome in outcomes.values() if isinstance(outcome, Error)]
        return seen, [error for error in errors if not group.failures.is_tolerated(error)]

    def send_filters(self, filters: Mapping[str, Any], timeout_seconds: float | None = None) -> None:
        """Have remote workers take these over, if the config says so, and those that come later.

        Raises:
            WorkerLate: some have not in time; they do before their next fragment.
            Exception: what a worker raised.
        """
        timeout, group = seconds_to_wait(timeout_seconds, FILTERS_S), self._workers.open()
        self._workers.share({f"{FILTER}{policy_id}": one for policy_id, one in filters.items()})
        if timeout and self._workers.config.update_worker_filter_stats:
            group.update(group.fleet.up, timeout)

    def _take_in(self, theirs: Sequence[Mapping[str, Any]]) -> None:
        """Take in what workers saw since they were last asked."""
        local, kept = self._workers.local, self._workers.filters
        own = kept if local is None else local.filters
        for filters in theirs:
            for policy_id, seen in filters.items():
                if policy_id in own:
                    own[policy_id].apply_changes(seen)
                elif local is None:
                    own[policy_id] = seen
        for each in kept.values():
            each.reset_buffer()


class FragmentCollection:
    """Has workers sample until there is enough. What is out or there before, or after an exception, is part of it.

    Args:
        group: the workers.
        workers: of the set.
        min_env_steps: how much is enough; None: one fragment per worker.
    """

    def __init__(self, group: RolloutGroup, workers: Workers, min_env_steps: int | None) -> None:
        self._group, self._config = group, workers.config
        self._min_env_steps, self._shares = min_env_steps, len(group.ids())
        self._asked_before = group.last_number

    def collect(self, timeout: float) -> list[Request]:
        """The fragments that are in time, in order; they are to be closed.

        Raises:
            WorkerLate: none was in time.
            WorkerLost: a worker was lost, and that is not tolerated.
            Exception: what an env or a policy raised. In all cases other fragments stay for the next call.
        """
        group = self._group
        group.wait_while(self._awaited, timeout)
        there = self._there()
        if not self._is_enough(there):
            group.set_overdue(self._unanswered())
        if there:
            return sorted(there, key=lambda one: (one.worker, one.number))
        late = tuple(sorted({one.worker for one in self._unanswered()} or group.ids()))
        why = f"no fragment of workers {list(late)} was there within {timeout:g} s (sample_timeout_s)"
        raise WorkerLate(f"{why}; they are delivered later", workers=late, deadline=timeout)

    def _awaited(self) -> list[Request] | None:
        self._settle()
        if self._is_enough(self._there()):
            return None
        self._ask()
        return [*self._unanswered(), *self._group.overdue(self._group.fleet.up)]

    def _fragments(self) -> list[Request]:
        return [one for one in self._group.wanted() if one.asked.kind == "fragment"]

    def _there(self) -> list[Request]:
        return [one for one in self._fragments() if one.reply is not None]

    def _unanswered(self) -> list[Request]:
        return [one for one in self._fragments() if not one.ticket.done]

    def _is_enough(self, fragments: Sequence[Request]) -> bool:
        if self._min_env_steps is None:
            return len(fragments) >= self._shares
        steps: int = sum(one.asked.steps for one in fragments)
        return steps >= self._min_env_steps

    def _ask(self) -> None:
        """Ask the free, those who have given least first, for as much as is missing."""
        while not self._is_enough(fragments := self._fragments()):
            busy = {one.worker for one in fragments if one.reply is None}
            free = [worker for worker in self._group.fleet.up if worker not in busy and self._group.is_free(worker)]
            if not free:
                return
            given = [one.worker for one in fragments]
            worker = min(free, key=lambda each: (given.count(each), each))
            steps = self._config.get_rollout_fragment_length(worker) * self._config.num_envs_per_env_runner
            self._group.request(worker, "sample", asked=Purpose("fragment", steps=steps))

    def _settle(self) -> None:
        """Open the answers; what is lost is out no more.

        Raises:
            Exception: what a worker raised.
        """
        group, failures = self._group, self._group.failures
        for request in [one for one in self._fragments() if one.answered]:
            is_old_refusal = group.has_refused(request) and request.number <= self._asked_before
            error = self._opened(request)
            if error is None or is_old_refusal:
                continue  # what it refused then may not be the newest now
            is_lost = isinstance(error, PayloadLost | WorkerLost | WorkerLate)
            if is_lost:
                group.fragments_lost += 1
                group.fleet.look([request.ticket])  # it may have died since the last look, and is not to be asked again
            if not is_lost or not (failures.tolerated or isinstance(error, PayloadLost)):
                raise error
            failures.note(request.name, "discarded", f"a fragment: {error}")

    def _opened(self, request: Request) -> BaseException | None:
        """Open the answer; what is to be seen in its place, if there is none."""
        outcome = self._group.outcome(request)
        if isinstance(outcome, Error):
            return outcome.exception
        try:
            request.asked.batch = request.reply.open()
        except PayloadLost as lost:
            self._group.close(request)
            return lost
        request.asked.steps = outcome.value
        self._group.frames[request.worker] += outcome.value
        return None


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
    if max_agent_steps is None:
        return worker_set.sample(min_env_steps=max_env_steps, concat=concat)
    if max_env_steps is not None:
        raise ValueError("max_env_steps and max_agent_steps are two ways to end; give one of them")
    batches: list[Batch] = []
    while sum(batch.agent_steps() for batch in batches) < max_agent_steps:
        batches += worker_set.sample(concat=False)  # type: ignore[arg-type]  # a list
    return _as_asked(batches, concat=concat)


def _joined(group: RolloutGroup, fragments: Sequence[Request], *, concat: bool) -> Batch | list[Batch]:
    """The batches, as one or as a list; the caller's own. The fragments are closed."""
    batches: list[Batch] = [one.asked.batch for one in fragments]
    try:
        for batch in batches:
            _own_objects(batch)
        is_copied = concat and len(batches) > 1  # by joining them
        return _as_asked(batches if is_copied else [batch.copy() for batch in batches], concat=concat)
    finally:
        for request in fragments:
            request.asked.batch = None
            group.close(request)


def _own_objects(batch: Batch) -> None:
    """Copy objects, infos for instance, which may hold arrays that are views: joining copies references to them."""
    parts: Iterable[SampleBatch] = batch.policy_batches.values() if isinstance(batch, MultiAgentBatch) else [batch]
    for part in parts:
        for name, column in part.items():
            if any(holds_objects(leaf) for _, leaf in leaves(column)):
                dict.__setitem__(part, name, copy.deepcopy(column))


def _as_asked(batches: list[Batch], *, concat: bool) -> Batch | list[Batch]:
    """As one batch, or as they are."""
    if not concat:
        return batches
    return batches[0] if len(batches) == 1 else concat_samples(batches)
