"""The set of workers for users: batches out, weights and filters in, policies, and the state of its workers.

call free workers ─▶ open ─▶ answered ─▶ in order of (worker, request) ─▶ a batch that the caller owns
    ▲                 ├─▶ lost: its share is requested again
    │                 ├─▶ raised: raised here, the other fragments stay for the next call
    └─ too few? ◀─────┴─▶ late: stays open, for the next call
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import methodcaller
from typing import Any, Literal, Self

from swath.errors import warn_of_no_effect
from swath.group.group import Counters, select_view
from swath.nearest import check_keywords, with_options
from swath.options import count, one_of, seconds
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.batches.sample_batch import concat_samples
from swath.rollout_workers.callbacks import callbacks_of
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.env_runner import creator_of
from swath.rollout_workers.filters import FilterManager, Filters
from swath.rollout_workers.worker.policies import NewPolicy
from swath.rollout_workers.worker.worker import RolloutWorker
from swath.rollout_workers.worker_set import actor, calls
from swath.rollout_workers.worker_set.calls import TIMEOUT_S, Functions, Keywords, OnError, seconds_to_wait
from swath.rollout_workers.worker_set.group import FILTERS, Batch, Event, Reply
from swath.rollout_workers.worker_set.members import Members

COUNTED = ("frames", "batches", "fps", "seconds", "seconds_waiting")

FILTERS_S = 10.0
"""Default time limit of each round of a synchronisation of filters."""


class WorkerSet:
    """Many rollout workers as one; dead workers are replaced, with the policies, weights and filters of the others.

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
        validate_env: looks at each sub-env, and raises to refuse it.
        default_policy_class: of policies without one.
        config: an `AlgorithmConfig`, a dict, or None for defaults; copied.
        num_workers: remote workers, with ids from 1; None: `config.num_env_runners`.
        backend: `"ray"`, `"process"` or `"inline"`; None: Ray if it is up in this process, else processes.
        local_worker: build worker 0 in this process; it is always built if there are no others.
        logdir: workers write to folders in it; None: nothing is written.
        num_env_runners: another name of `num_workers`.
        local_env_runner: another name of `local_worker`.
        _setup: False builds no worker.

    Attributes:
        config: the settings by which workers are built, also later ones: to be read, not changed.

    Raises:
        ValueError: no env creator, an unknown backend, or one that lacks what the config requires.
        RuntimeError: the backend needs a package that is not installed.
        WorkerLate: a worker was not ready in time.
        Exception: what building a worker raised. All other workers are ended then.
    """

    @check_keywords
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
        self.config = config = AlgorithmConfig.of(config)
        number = calls.choose("num_workers", num_workers, "num_env_runners", num_env_runners)
        config.env_runners(num_env_runners=config.num_env_runners if number is None else number).validate()
        if backend is not None:
            one_of("backend", backend, Literal["ray", "process", "inline"])
        creator = env_creator or (None if config.env is None else creator_of(config.env))
        if creator is None and _setup:
            raise ValueError("nothing to make envs with: give env_creator, or a config with environment(env=…)")
        arguments: dict[str, Any] = {"env_creator": creator, "validate_env": validate_env, "config": config}
        make = partial(RolloutWorker, **arguments, default_policy_class=default_policy_class)
        wants_local = (local_worker if local_env_runner is None else local_env_runner) or not config.num_env_runners
        self._members = Members(config, make, logdir, backend, self._report_returned, wants_local=wants_local)
        self._callbacks, self._counters, self._returned = callbacks_of(config), Counters(), list[int]()
        if _setup:
            try:
                self._members.build()
                self._counters.start_clock()
            except BaseException:
                self.stop(0.0)
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        group = self._members.group
        local = "no local worker" if self._local_env_runner is None else "a local worker"
        remote = f"; {group.fleet!r}, version {group.channel.version}" if group.ids() else ""
        return f"<{type(self).__name__}: {'stopped' if self._members.is_stopped else local + remote}>"

    def local_worker(self) -> Any:
        """Return worker 0, or None."""
        return self._members.local

    def _set_local_worker(self, worker: Any) -> None:
        self._members.local = worker

    local_env_runner = property(local_worker)
    _local_env_runner = property(local_worker, _set_local_worker)  # RLlib's users set it

    def worker_ids(self) -> list[int]:
        """Return the ids of the remote workers that live or are coming back."""
        return self._members.group.ids()

    def healthy_worker_ids(self) -> list[int]:
        """Return the ids of the remote workers that can be called, as far as is known."""
        return sorted(self._members.look(losses=False).fleet.up)

    def num_remote_workers(self) -> int:
        """Return how many remote workers live or are coming back."""
        return len(self.worker_ids())

    def num_healthy_remote_workers(self) -> int:
        """Return how many remote workers can be called, as far as is known."""
        return len(self.healthy_worker_ids())

    def num_healthy_workers(self) -> int:
        """Return how many workers can be called, the local one included."""
        return self.num_healthy_remote_workers() + (self._local_env_runner is not None)

    def num_remote_worker_restarts(self) -> int:
        """Return how often a remote worker was replaced."""
        return self._members.group.fleet.restarts

    def probe_unhealthy_workers(self, timeout_seconds: float | None = None) -> list[int]:
        """Wait for workers that are coming back; return the ids of those that came back since the last call.

        Workers come back without this call, too.

        Args:
            timeout_seconds: None: `config.env_runner_health_probe_timeout_s`.
        """
        timeout = seconds_to_wait(timeout_seconds, self.config.env_runner_health_probe_timeout_s)
        group = self._members.look()
        group.wait_until_back(group.ids(), timeout)
        self._members.look()
        returned, self._returned = self._returned, []
        return sorted(set(returned))

    env_runner_ids = worker_ids
    healthy_env_runner_ids = healthy_worker_ids
    num_remote_env_runners = num_remote_workers
    num_healthy_remote_env_runners = num_healthy_remote_workers
    num_healthy_env_runners = num_healthy_workers
    num_remote_env_runner_restarts = num_remote_worker_restarts
    probe_unhealthy_env_runners = probe_unhealthy_workers

    def get_spaces(self) -> dict[str, Any]:
        """Return spaces of observations and actions by policy id, and of the env under `"__env__"`."""
        return dict(self._members.ask_first("get_spaces"))

    def events(self) -> list[Event]:
        """Return the events of workers since the last call: (time, worker, life, kind, text) each."""
        if not self._members.is_stopped:
            self._members.look(losses=False)
        events = self._members.group.events
        return [events.popleft() for _ in range(len(events))]

    def stats(self, workers: str = "aggregate") -> dict[str, Any]:
        """Return numbers and short strings on this set, under the names of collectors, without asking workers.

        Any thread may call it, also after `stop`. Workers are shown as of the last call of another method. Frames are
        env steps that `sample` has handed out.

        Args:
            workers: `"aggregate"`, `"per_worker"` or `"both"`.

        Raises:
            ValueError: another view.
        """
        aggregate, of_workers = self._members.group.worker_stats(is_stopped=self._members.is_stopped)
        counted = {name: getattr(self._counters, name) for name in COUNTED}
        version = getattr(self._local_env_runner, "policy_version", 0)
        return select_view(workers, {**counted, "policy_version": version, **aggregate}, of_workers)

    def foreach_worker(
        self,
        func: Functions,
        *,
        kwargs: Keywords = None,
        local_worker: bool = True,
        healthy_only: bool = True,
        worker_ids: Sequence[int] | None = None,
        timeout_seconds: float | None = None,
        on_error: OnError = "raise",
        with_ids: bool = False,
        **refused: Any,
    ) -> list[Any]:
        """Call a function in workers and wait for their answers.

        Args:
            func: called with the worker; or the name of a method; or a list of functions and names, one per worker.
            kwargs: keywords of the call; or a list of keywords, one per worker.
            local_worker: also in the local worker, if there is one.
            healthy_only: only in workers that can be called now; otherwise workers that are coming back are waited for.
            worker_ids: in which remote workers; None: all, `[]`: none.
            timeout_seconds: for all answers together; None: 300; 0 sends, does not wait and returns `[]`.
            on_error: raise the first error by id, with all outcomes in its `results`; or `"return"` each in its place,
                as a `swath.workers.outcome.Error` with its `exception`.
            with_ids: each entry is `(id, answer)`.
            **refused: `return_obj_refs` and `mark_healthy`, only False.

        Returns:
            One entry per worker: the local one's, then by id. Workers whose loss is tolerated have none.

        Raises:
            WorkerLate: a worker has not answered in time; its answer can be fetched later, under the tag "late".
            WorkerLost: a worker died, and that is not tolerated.
            FleetFailed: no remote workers are left, or too many died in a row.
            ValueError: an unknown id, lists of another length, no number of seconds, another `on_error`; no worker is
                called then.
            Exception: what the function raised.
        """
        calls.refuse(refused)
        timeout = seconds_to_wait(timeout_seconds)
        one_of("on_error", on_error, OnError)
        group, local = self._members.look(), self._local_env_runner
        workers = [*([0] if local_worker and local is not None else []), *group.select(worker_ids)]
        assigned = dict(calls.assign_calls(func, kwargs, workers, one_each=True))
        if healthy_only:
            assigned = {w: call for w, call in assigned.items() if w == 0 or w in group.fleet.up}
        entries = calls.call_workers(group, local, assigned, timeout, raises=on_error == "raise")
        return entries if with_ids else [entry for _, entry in entries]

    def foreach_worker_async(
        self,
        func: Functions,
        *,
        tag: Any = None,
        kwargs: Keywords = None,
        healthy_only: bool = True,
        worker_ids: Sequence[int] | None = None,
        **refused: Any,
    ) -> int:
        """Send a call to remote workers; `fetch_ready_async_reqs` returns the answers.

        Args:
            func: as of `foreach_worker`; the items of a list are assigned to the workers in turn, each once.
            tag: of the requests; None is a tag, too.
            kwargs: as of `foreach_worker`.
            healthy_only: False waits for workers that are coming back.
            worker_ids: to which workers; None: all.
            **refused: as of `foreach_worker`.

        Returns:
            The number of requests sent; a worker has at most `max_requests_in_flight_per_env_runner` open per tag.
        """
        calls.refuse(refused)
        group = self._members.look()
        workers = group.select(worker_ids)
        if not healthy_only:
            group.wait_until_back(workers, TIMEOUT_S)
        up = [worker for worker in workers if worker in group.fleet.up]
        assigned = calls.assign_calls(func, kwargs, up, one_each=False)
        return calls.send_to_free(group, assigned, tag, self.config.max_requests_in_flight_per_env_runner)

    def fetch_ready_async_reqs(
        self,
        *,
        tags: str | Collection[Any] | None = None,
        timeout_seconds: float | None = 0.0,
        on_error: OnError | None = None,
        **refused: Any,
    ) -> list[Reply]:
        """Return the answers to asynchronous requests that have arrived.

        Args:
            tags: of the requests; None: all, but not `"late"`.
            timeout_seconds: how long all open requests are waited for; None: until all are answered.
            on_error: None raises the first exception of a call, other answers stay for the next fetch; `"return"` has
                exceptions, and lost workers, as `error` of replies.
            **refused: as of `foreach_worker`.

        Returns:
            Replies, which unpack to `(worker_id, result)`.

        Raises:
            ValueError: no number of seconds, or another `on_error`.
            WorkerLost: a worker died, and that is not tolerated.
            Exception: what a call raised.
        """
        timeout = float("inf") if timeout_seconds is None else seconds("timeout_seconds", timeout_seconds)
        if on_error is not None:
            one_of("on_error", on_error, OnError)
        calls.refuse(refused)
        raises = on_error != "return"
        group = self._members.look(losses=raises)
        return calls.fetch(group, [tags] if isinstance(tags, str) else tags, timeout, raises=raises)

    def foreach_worker_async_fetch_ready(
        self,
        func: Functions,
        *,
        tag: Any = None,
        timeout_seconds: float | None = 0.0,
        on_error: OnError | None = None,
        **keywords: Any,
    ) -> list[Reply]:
        """Fetch the answers of a tag, then send the next call; see the two methods."""
        replies = self.fetch_ready_async_reqs(tags=[tag], timeout_seconds=timeout_seconds, on_error=on_error)
        self.foreach_worker_async(func, tag=tag, **keywords)
        return replies

    def num_in_flight_async_reqs(self, tag: Any = None) -> int:
        """Return the number of asynchronous requests that are not answered; None: of all tags."""
        return len(self._members.group.unanswered(None if tag is None else [tag]))

    def foreach_env_runner(self, func: Functions, **keywords: Any) -> list[Any]:
        """Call `foreach_worker`, with RLlib's names `local_env_runner` and `remote_worker_ids`."""
        return self.foreach_worker(func, **calls.rename_keywords(keywords))

    def foreach_env_runner_async(self, func: Functions, tag: Any = None, **keywords: Any) -> int:
        """Call `foreach_worker_async`, with RLlib's name `remote_worker_ids`."""
        return self.foreach_worker_async(func, tag=tag, **calls.rename_keywords(keywords))

    def foreach_env_runner_async_fetch_ready(
        self,
        func: Functions,
        kwargs: Keywords = None,
        tag: Any = None,
        timeout_seconds: float | None = 0.0,
        *,
        return_actor_ids: bool = False,
        **keywords: Any,
    ) -> list[Any]:
        """Call `foreach_worker_async_fetch_ready`; return the results, or `(worker_id, result)` with the ids."""
        keywords = {"tag": tag, "kwargs": kwargs, "timeout_seconds": timeout_seconds, **calls.rename_keywords(keywords)}
        replies = [reply for reply in self.foreach_worker_async_fetch_ready(func, **keywords) if reply.error is None]
        return [(reply.worker, reply.result) if return_actor_ids else reply.result for reply in replies]

    def foreach_worker_with_id(self, func: Callable[[int, Any], Any], **keywords: Any) -> list[Any]:
        """Call `func(worker_id, worker)` as `foreach_worker` or `foreach_env_runner` do; the local worker's id is 0."""
        return self.foreach_worker(lambda worker: func(worker.worker_index, worker), **calls.rename_keywords(keywords))

    foreach_env_runner_with_id = foreach_worker_with_id

    def foreach_env(self, func: Callable[[Any], Any]) -> list[list[Any]]:
        """Call a function with each sub-env; return a list per worker, the local one's first."""
        return self.foreach_worker("foreach_env", kwargs={"func": func})

    def foreach_env_with_context(self, func: Callable[[Any, Any], Any]) -> list[list[Any]]:
        """Call a function with each sub-env and its context; return a list per worker, the local one's first."""
        return self.foreach_worker("foreach_env_with_context", kwargs={"func": func})

    def foreach_policy(self, func: Callable[[Any, str], Any]) -> list[Any]:
        """Call a function with each policy and its id; return one list, the local worker's results first."""
        return [*chain.from_iterable(self.foreach_worker("foreach_policy", kwargs={"func": func}))]

    def foreach_policy_to_train(self, func: Callable[[Any, str], Any]) -> list[Any]:
        """Call a function with each policy that learns, as `foreach_policy` does."""
        return [*chain.from_iterable(self.foreach_worker("foreach_policy_to_train", kwargs={"func": func}))]

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
            min_env_steps: number of env steps to collect at least; None: one fragment of each worker.
            min_agent_steps: the same in steps of agents.
            concat: one batch; False: a list of the workers' batches, in order of worker and request.
            timeout_seconds: None: `config.sample_timeout_s`. Fragments that are late then are part of the next batch.

        Raises:
            ValueError: both numbers of steps are given, or there is no worker.
            WorkerLate: no fragment has arrived in time.
            WorkerLost: a worker died, and that is not tolerated; where it is, others collect its share.
            FleetFailed: no workers are left.
            Exception: what an env or a policy raised, one of each call, others are among the events; what was
                collected before is part of the next batch.
        """
        kind, number = ("env_steps", min_env_steps) if min_agent_steps is None else ("agent_steps", min_agent_steps)
        if None not in (min_env_steps, min_agent_steps):
            raise ValueError("steps of envs and steps of agents are two ways to end; give one of them")
        min_steps, steps_of = 0 if number is None else count(f"min_{kind}", number), methodcaller(kind)
        timeout = seconds_to_wait(timeout_seconds, self.config.sample_timeout_s)
        batches = self._members.sample(min_steps, steps_of, timeout, concat=concat, counters=self._counters)
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
        """Publish weights, which remote workers apply before their next fragment; return their version.

        Args:
            policies: an id or several; None: all. Other policies keep their weights.
            from_worker: anything with `get_weights`; None: the local worker, which gets the weights of any other
                source, too.
            to_worker_indices: which remote workers get them; None: all.
            global_vars: published with them, and given to the local worker.
            timeout_seconds: how long to wait until all have applied them; 0: do not wait; None: 300.
            inference_only: without effect: post-processing needs all weights.
            from_worker_or_learner_group: another name of `from_worker`.

        Raises:
            TypeError: there is no source.
            WorkerLate: some workers have not applied them in time; they do before their next fragment.
            Exception: what a worker raised when it applied them.
        """
        timeout = seconds_to_wait(timeout_seconds)
        if inference_only:
            warn_of_no_effect("inference_only", "post-processing needs all weights")
        group, local = self._members.look(), self._local_env_runner
        sources = [worker for worker in (from_worker, from_worker_or_learner_group, local) if worker is not None]
        if not sources:
            raise TypeError("there is no local worker to take weights from; give from_worker, with get_weights()")
        ids = [policies] if isinstance(policies, str) else policies
        selected = None if to_worker_indices is None else group.select(to_worker_indices)
        weights = sources[0].get_weights() if ids is None else sources[0].get_weights(ids)
        version = self._members.sync_weights(sources[0], weights, global_vars, selected)
        if timeout:
            group.update([worker for worker in group.fleet.up if selected is None or worker in selected], timeout)
        return version

    def applied_versions(self) -> dict[int, int]:
        """Return the version of the weights that each remote worker is known to have, by id."""
        group = self._members.look()
        return {worker: group.versions[worker] for worker in group.ids()}

    def sync_filters(self, timeout_seconds: float | None = None) -> None:
        """Merge the statistics of the filters of all workers, and give all workers the result.

        The settings `use_worker_filter_stats` and `update_worker_filter_stats` switch off either half.

        Args:
            timeout_seconds: of each of the two rounds; None: 10.

        Raises:
            WorkerLate: workers have not answered in time; what the others have seen is merged.
            Exception: what a worker raised; what the others have seen is merged.
        """
        local, collects = self._local_env_runner, self.config.use_worker_filter_stats
        filters = actor.by_policy(self._members.shared, actor.FILTER) if local is None else local.filters
        FilterManager.synchronize(filters, self, timeout_seconds=timeout_seconds, use_remote_data_for_update=collects)

    def collect_filters(self, timeout_seconds: float | None = None) -> tuple[list[Filters], list[BaseException]]:
        """Return filters by policy id of each remote worker, whose buffers are emptied, and errors of the others."""
        timeout, group = seconds_to_wait(timeout_seconds, FILTERS_S), self._members.look(losses=False)
        pending, call = group.tagged([FILTERS]), ("run", "get_filters", {"flush_after": True})
        replies = group.replies(dict.fromkeys(group.fleet.up, call), {}, timeout, FILTERS)
        replies += [group.reply(request) for request in pending if request.ticket.done]
        late = f"sent within {timeout:g} s what their filters have seen; it is merged the next time"
        return [reply.result for reply in replies if reply.error is None], group.failures(replies, late, timeout)

    def send_filters(self, filters: Filters, timeout_seconds: float | None = None) -> None:
        """Give remote workers these filters, also later ones; wait if `update_worker_filter_stats` is set."""
        timeout, group = seconds_to_wait(timeout_seconds, FILTERS_S), self._members.look()
        self._members.publish({f"{actor.FILTER}{policy_id}": filter_ for policy_id, filter_ in filters.items()})
        if timeout and self.config.update_worker_filter_stats:
            group.update(group.fleet.up, timeout)

    @with_options(NewPolicy)
    def add_policy(self, new: NewPolicy) -> None:
        """Add a policy to all workers, also to later ones, all or nothing.

        `RolloutWorker.add_policy` describes the arguments; a policy object is used by the local worker, the others
        get copies.

        Raises:
            KeyError: the id is taken.
            ValueError: not exactly one of class and policy; a `module_spec`.
            Exception: what building it raised, in the first worker by id; then no worker has it.
        """
        if new.policy_id in (policy_ids := self._members.policy_ids()):
            raise KeyError(f"policy_id={new.policy_id!r} is taken; there are {sorted(policy_ids)}")
        self._members.add_policy(new)

    def remove_policy(
        self,
        *,
        policy_id: str = DEFAULT_POLICY_ID,
        policy_mapping_fn: Callable[..., str] | None = None,
        policies_to_train: Any = None,
    ) -> None:
        """Remove a policy from all workers, also from later ones; raise `ValueError` for an unknown id."""
        if policy_id not in (policy_ids := self._members.policy_ids()):
            raise ValueError(f"policy_id={policy_id!r} is unknown; there are {sorted(policy_ids)}")
        self._members.set_policy_functions(policy_mapping_fn, policies_to_train, removed=policy_id)

    def set_policy_mapping_fn(self, policy_mapping_fn: Callable[..., str] | None = None) -> None:
        """Set in all workers, also later ones, which policy acts for an agent in new episodes."""
        self._members.set_policy_functions(policy_mapping_fn, None)

    def set_is_policy_to_train(self, is_policy_to_train: Any) -> None:
        """Set in all workers, also later ones, which policies learn, as `RolloutWorker.set_is_policy_to_train`."""
        if is_policy_to_train is None:
            raise TypeError("is_policy_to_train=None: give ids, or f(policy_id, batch=None) -> bool")
        self._members.set_policy_functions(None, is_policy_to_train)

    def is_policy_to_train(self, policy_id: str, batch: Any = None) -> bool:
        """Return whether a policy learns."""
        return policy_id in self._members.ask_first("get_policies_to_train", batch=batch)

    def add_workers(self, n: int | None = None, validate: bool = False, *, num_workers: int | None = None) -> None:
        """Add remote workers, and wait until they can be called.

        Args:
            n: how many.
            validate: also wait until they have answered that they are healthy.
            num_workers: another name of `n`.

        Raises:
            WorkerLate: some were not ready in time; none is added.
            Exception: what building one raised; none is added.
        """
        number = count("n" if num_workers is None else "num_workers", calls.choose("n", n, "num_workers", num_workers))
        before = {*self._members.look().ids()}
        self._members.grow(number)
        if validate:
            self.foreach_worker("assert_healthy", worker_ids=[*{*self.worker_ids()} - before], local_worker=False)

    def remove_workers(self, ids: Sequence[int]) -> None:
        """End remote workers for good, and drop their undelivered data; raise `ValueError` for an unknown id."""
        self._members.remove(self._members.look().select(ids))

    def reset(self, new_remote_workers: Sequence[Any]) -> None:
        """Raise `NotImplementedError`: a set builds its own workers."""
        problem = f"{len(new_remote_workers)} workers made elsewhere cannot be taken over: a set builds its own"
        raise NotImplementedError(f"{problem}; give WorkerSet an env_creator and num_workers, or call add_workers(n)")

    def stop(self, timeout_s: float = 10.0) -> None:
        """Wait `timeout_s` seconds for the workers to close their envs, then end them; a second call does nothing."""
        timeout = seconds("timeout_s", timeout_s)
        if not self._members.is_stopped:
            self._members.stop(timeout)

    def _report_returned(self, worker_ids: list[int]) -> None:
        self._returned += worker_ids
        evaluation = self.config.in_evaluation
        for report in (self._callbacks.on_workers_recreated, self._callbacks.on_env_runners_recreated):
            report(worker_set=self, worker_ids=worker_ids, is_evaluation=evaluation)


EnvRunnerGroup = WorkerSet
