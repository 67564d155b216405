"""How a set collects, and how its workers get weights and filters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from swath.errors import warn_of_no_effect
from swath.options import count
from swath.rollout_workers.filters.sharing import rebase_all
from swath.rollout_workers.worker_set.asking import publish, spread
from swath.rollout_workers.worker_set.calling import Calling
from swath.rollout_workers.worker_set.fragments import Batch, as_asked, joined, local_batches
from swath.rollout_workers.worker_set.group import seconds_to_wait
from swath.workers.outcome import Error, Outcome, Value

FILTERS_S = 10.0
"""How long each round of a synchronisation of filters is waited for if nobody says."""

_FLUSHED = object()
"""The tag of filters that came too late: what they have seen is part of the next synchronisation."""


class Sampling(Calling):
    """Batches out, weights and filters in."""

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
            WorkerLost: a worker died, and that is not borne; where it is, others collect its share.
            FleetFailed: no workers are left.
            Exception: what an env or a policy raised; the other fragments are part of the next batch.
        """
        if min_env_steps is not None:
            count("min_env_steps", min_env_steps)
        timeout = seconds_to_wait(timeout_seconds, self._config.sample_timeout_s)
        crew = self._remote()
        if crew is None or not crew.ids():
            batches = local_batches(self._own_worker(), min_env_steps)
            self._counters.deliver(sum(batch.env_steps() for batch in batches))
            return as_asked(batches, concat=concat)
        return joined(self._fragments.collect(crew, min_env_steps, timeout), concat=concat)

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
            global_vars: likewise told to them, and to the local worker.
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
        local, crew = self._local_env_runner, self._remote()
        source = from_worker if from_worker is not None else from_worker_or_learner_group
        source = local if source is None else source
        if source is None:
            raise TypeError("there is no local worker to take weights from; give from_worker, with get_weights()")
        wanted = [policies] if isinstance(policies, str) else policies
        weights = source.get_weights() if wanted is None else source.get_weights(wanted)
        addressed = None if to_worker_indices is None else self._addressed(crew, to_worker_indices)
        version = self._published(weights, addressed, global_vars)
        if local is not None and source is not local:
            local.set_weights(weights, global_vars, version)
        elif local is not None and global_vars is not None:
            local.set_global_vars(global_vars)
        if crew is not None and timeout:
            able = [worker for worker in crew.up() if addressed is None or worker in addressed]
            spread(crew, able, timeout)
        return version

    def applied_versions(self) -> dict[int, int]:
        """The version of the weights that each remote worker is known to have, by id."""
        crew = self._remote()
        return {} if crew is None else crew.applied()

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
        if self._config.use_worker_filter_stats:
            theirs, failures = self.collect_filters(timeout)
            self._take_in(theirs)
        if self._config.update_worker_filter_stats and (filters := self._filters_to_begin_with()):
            sent = self._ask_remote(partial(_send, filters=filters), timeout)
            failures += self._failures(outcome for outcome in sent.values())
        for failure in failures:
            raise failure

    def collect_filters(
        self, timeout_seconds: float | None = None
    ) -> tuple[list[Mapping[str, Any]], list[BaseException]]:
        """Filters of remote workers, with what each has seen since it was last asked in its buffer, which is emptied.

        Args:
            timeout_seconds: for all answers together; None: 10.

        Returns:
            Filters by policy id, and why there are none of some workers, unless their loss is borne.
        """
        outcomes = self._ask_remote(_flush, seconds_to_wait(timeout_seconds, FILTERS_S), _FLUSHED)
        crew = self._remote()
        late = [] if crew is None else self._requests.fetch(crew, [_FLUSHED], 0, "return")
        seen = [reply.result for reply in late if reply.error is None]  # what was seen first comes first
        seen += [each.value for each in outcomes.values() if isinstance(each, Value)]
        return seen, self._failures(outcomes.values())

    def _published(
        self, weights: Mapping[str, Any], workers: Sequence[int] | None, global_vars: Mapping[str, Any] | None
    ) -> int:
        crew = self._remote()
        own = max(self._version, getattr(self._local_env_runner, "policy_version", 0))
        if crew is not None and global_vars is not None:
            crew.put_global_vars(global_vars)
        self._version = own + 1 if crew is None else publish(crew, weights, own, workers)
        return self._version

    def _failures(self, outcomes: Iterable[Outcome]) -> list[BaseException]:
        """What workers raised, and losses of workers that are not borne."""
        crew = self._remote()
        errors = [outcome.exception for outcome in outcomes if isinstance(outcome, Error)]
        return [error for error in errors if crew is None or not crew.is_borne(error)]

    def _take_in(self, theirs: Sequence[Mapping[str, Any]]) -> None:
        """Take in what workers saw since they were last asked."""
        local = self._local_env_runner
        own = self._filters if local is None else local.filters
        for filters in theirs:
            for policy_id, seen in filters.items():
                if policy_id in own:
                    own[policy_id].apply_changes(seen)
                elif local is None:
                    own[policy_id] = seen
        for kept in self._filters.values():
            kept.reset_buffer()

    def _own_worker(self) -> Any:
        if self._local_env_runner is None:
            raise ValueError("sample() needs a worker, and this set has none; give num_workers or local_worker=True")
        return self._local_env_runner


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
    return as_asked(batches, concat=concat)


def _flush(worker: Any) -> Any:
    return worker.get_filters(flush_after=True)


def _send(worker: Any, filters: Mapping[str, Any]) -> None:
    rebase_all({policy_id: own for policy_id, own in worker.filters.items() if policy_id in filters}, filters)
