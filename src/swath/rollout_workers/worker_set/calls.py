"""The workers of a set, and how functions are called in them, waited for or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain, cycle
from typing import Any, Literal, TypeAlias

from swath.errors import Closed
from swath.group.group import Request
from swath.nearest import unexpected
from swath.options import one_of, seconds
from swath.rollout_workers.callbacks import DefaultCallbacks
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.worker_set.actor import called
from swath.rollout_workers.worker_set.group import LATE, Purpose, Reply, RolloutGroup
from swath.workers.hosting import attempted
from swath.workers.outcome import Error

Function: TypeAlias = Callable[..., Any] | str
Functions: TypeAlias = Function | Sequence[Function]
Keywords: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
Call: TypeAlias = tuple[str, Function, Mapping[str, Any]]
OnError: TypeAlias = Literal["raise", "return"]

TIMEOUT_S = 300.0
"""How long a call is waited for if nobody says."""

MOST_LATE = 100
"""How many answers that came too late are kept."""

_REFUSED = {
    "return_obj_refs": "answers are values; call `ray.put` in the function to keep large ones in Ray's store",
    "mark_healthy": "the set sees itself which workers live; leave it out",
}
"""Keywords of RLlib's that are not served, and what to do instead."""


def seconds_to_wait(timeout_seconds: float | None, otherwise: float = TIMEOUT_S) -> float:
    """How long a caller waits; None: as `otherwise`.

    Raises:
        ValueError: it is no number of seconds.
    """
    return otherwise if timeout_seconds is None else seconds("timeout_seconds", timeout_seconds)


class Calls:
    """The workers of a set, and calls of functions in them.

    Attributes:
        config: the settings by which workers are built, also those to come: to be read, not changed.
    """

    config: AlgorithmConfig
    _group: RolloutGroup
    _callbacks: DefaultCallbacks
    _returned: list[int]
    _stopped = False
    _local_env_runner: Any = None

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
            func: called with the worker; or the name of a method; or a list of such, one per worker.
            kwargs: keywords of the call; or a list of such, one per worker.
            local_worker: also in the local worker, if there is one.
            healthy_only: only in those that can be called now; otherwise those that are coming back are waited for.
            worker_ids: in which remote workers; None: all, `[]`: none.
            timeout_seconds: for all answers together; None: 300; 0 sends, waits for nobody and returns `[]`.
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
            ValueError: an id that there is not; lists of another length; a time or a way with errors that there is not.
                Nobody was asked then.
            Exception: what the function raised.
        """
        _refuse(refused)
        timeout = seconds_to_wait(timeout_seconds)
        one_of("on_error", on_error, OnError)
        group, local = self._open(), self._local_env_runner
        here = [0] if local_worker and local is not None else []
        calls = dict(_calls(func, kwargs, [*here, *self._addressed(worker_ids)], one_each=True))
        remote = {w: call for w, call in calls.items() if w and (w in group.fleet.up or not healthy_only)}
        asked = dict[int, Request]()
        group.ask_free(remote, asked)
        replies = [_reply_of(local, calls[worker]) for worker in here]
        replies += group.replies(remote, timeout, asked=asked) if timeout else []
        kept = [one for one in replies if on_error == "return" or not group.is_tolerated(one.error)]
        entries = [(one.worker, one.result if one.error is None else Error(one.error)) for one in kept]
        for forgotten in group.tagged([LATE])[:-MOST_LATE]:
            group.cancel(forgotten)
        if on_error == "raise":
            group.require_enough()
            for error in [one.error for one in kept if one.error is not None]:
                error.results = entries  # type: ignore[attr-defined]  # for whoever catches it
                raise error
        if timeout == 0:
            return []
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
        """Send a call to remote workers; the answers are fetched by `fetch_ready_async_reqs`.

        Args:
            func: as of `foreach_worker`; a list is dealt to the workers in turn, each item once.
            tag: whose requests these are; None is a tag, too.
            kwargs: as of `foreach_worker`.
            healthy_only: False waits for those that are coming back.
            worker_ids: to which; None: all.
            **refused: as of `foreach_worker`.

        Returns:
            How many went out: at most `max_requests_in_flight_per_env_runner` per worker and tag are on their way.
        """
        _refuse(refused)
        group, workers, sent = self._open(), self._addressed(worker_ids), 0
        most = self.config.max_requests_in_flight_per_env_runner
        if not healthy_only:
            self._wait_for(workers, TIMEOUT_S)
        out, free = Counter(one.worker for one in group.tagged([tag])), group.free()
        up = [worker for worker in workers if worker in group.fleet.up]
        for worker, call in _calls(func, kwargs, up, one_each=False):
            if worker in free and out[worker] < most:
                group.request(worker, *call, asked=Purpose(tag))
                out[worker] += 1
                sent += 1
        return sent

    def fetch_ready_async_reqs(
        self,
        *,
        tags: str | Collection[Any] | None = None,
        timeout_seconds: float | None = 0.0,
        on_error: OnError | None = None,
        **refused: Any,
    ) -> list[Reply]:
        """The answers to asynchronous requests that are there.

        Args:
            tags: of which; None: all, but not `"late"`.
            timeout_seconds: for how long all outstanding ones are waited for; None: until all are there.
            on_error: None raises the first exception of a call, other answers stay for the next fetch; `"return"` has
                exceptions, and lost workers, as `error` of replies.
            **refused: as of `foreach_worker`.

        Returns:
            Replies, which unpack to `(worker_id, result)`.

        Raises:
            ValueError: a time or a way with errors that there is not.
            WorkerLost: a worker died, and that is not tolerated.
            Exception: what a call raised.
        """
        timeout = float("inf") if timeout_seconds is None else seconds("timeout_seconds", timeout_seconds)
        if on_error is not None:
            one_of("on_error", on_error, OnError)
        _refuse(refused)
        tags = [tags] if isinstance(tags, str) else tags
        is_raised = on_error != "return"
        group = self._open(losses=is_raised)
        group.wait_until(lambda: not group.unanswered(tags), timeout)
        replies = list[Reply]()
        done = [one for one in group.tagged(tags) if one.ticket.done]
        for request in sorted(done, key=lambda one: is_raised and one.ticket.error is None):  # what raises comes first
            reply = group.reply(request)
            if is_raised and group.is_tolerated(reply.error):
                continue
            if is_raised and reply.error is not None:
                raise reply.error
            replies.append(reply)
        return replies

    def foreach_worker_async_fetch_ready(
        self,
        func: Functions,
        *,
        tag: Any = None,
        timeout_seconds: float | None = 0.0,
        on_error: OnError | None = None,
        **given: Any,
    ) -> list[Reply]:
        """Fetch the answers of a tag, then send the next call; see the two methods."""
        replies = self.fetch_ready_async_reqs(tags=[tag], timeout_seconds=timeout_seconds, on_error=on_error)
        self.foreach_worker_async(func, tag=tag, **given)
        return replies

    def num_in_flight_async_reqs(self, tag: Any = None) -> int:
        """Asynchronous requests that are not answered; None: of all tags."""
        return len(self._group.unanswered(None if tag is None else [tag]))

    def foreach_env_runner(self, func: Functions, **given: Any) -> list[Any]:
        """Another name of `foreach_worker`, whose `local_env_runner` and `remote_worker_ids` have RLlib's names."""
        return self.foreach_worker(func, **_renamed(given))

    def foreach_env_runner_async(self, func: Functions, tag: Any = None, **given: Any) -> int:
        """Another name of `foreach_worker_async`, likewise."""
        return self.foreach_worker_async(func, tag=tag, **_renamed(given))

    def foreach_env_runner_async_fetch_ready(
        self,
        func: Functions,
        kwargs: Keywords = None,
        tag: Any = None,
        timeout_seconds: float | None = 0.0,
        *,
        return_actor_ids: bool = False,
        **given: Any,
    ) -> list[Any]:
        """As `foreach_worker_async_fetch_ready`, with what RLlib's takes and returns.

        Returns:
            The results alone, or `(worker_id, result)` each if `return_actor_ids`. Errors have none.
        """
        sent = {"tag": tag, "kwargs": kwargs, "timeout_seconds": timeout_seconds, **_renamed(given)}
        replies = self.foreach_worker_async_fetch_ready(func, **sent)
        return [(one.worker, one.result) if return_actor_ids else one.result for one in replies if one.error is None]

    def foreach_worker_with_id(self, func: Callable[[int, Any], Any], **given: Any) -> list[Any]:
        """Call `func(worker_id, worker)` in workers and wait for their answers; id 0 is the local worker's.

        Args:
            func: called with the id and the worker.
            **given: other keywords of `foreach_worker` or `foreach_env_runner`.

        Returns:
            As `foreach_worker`.
        """
        return self.foreach_worker(partial(_call_with_id, func), **_renamed(given))

    foreach_env_runner_with_id = foreach_worker_with_id

    def foreach_env(self, func: Callable[[Any], Any]) -> list[list[Any]]:
        """What a function gives of each sub-env: a list per worker, the local one's first."""
        return self.foreach_worker("foreach_env", kwargs={"func": func})

    def foreach_env_with_context(self, func: Callable[[Any, Any], Any]) -> list[list[Any]]:
        """What a function gives of each sub-env and its context: a list per worker, the local one's first."""
        return self.foreach_worker("foreach_env_with_context", kwargs={"func": func})

    def foreach_policy(self, func: Callable[[Any, str], Any]) -> list[Any]:
        """What a function gives of each policy and its id: one list, the local worker's first."""
        return [*chain.from_iterable(self.foreach_worker("foreach_policy", kwargs={"func": func}))]

    def foreach_policy_to_train(self, func: Callable[[Any, str], Any]) -> list[Any]:
        """As `foreach_policy`, of the policies that learn."""
        return [*chain.from_iterable(self.foreach_worker("foreach_policy_to_train", kwargs={"func": func}))]

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

    def _ask_first(self, method: str, **keywords: Any) -> Any:
        """What a method gives in the local worker, or in the first remote one that can be called.

        Raises:
            WorkerLate: it does not answer in time.
            FleetFailed: there is none.
            Exception: what it raised.
        """
        if self._local_env_runner is not None:
            return getattr(self._local_env_runner, method)(**keywords)
        return self._group.call_first("run", method, keywords)[1]

    def _wait_for(self, workers: Sequence[int], timeout: float) -> None:
        """Wait until none of these is coming back any more, or the time is over."""
        group = self._group
        group.wait_until(lambda: all(each in group.fleet.up or group.is_gone(each) for each in workers), timeout)


def _reply_of(local: Any, call: Call) -> Reply:
    """What a call gives in the local worker."""
    outcome = attempted(called, local, *call[1:])
    return Reply(0, None, error=outcome.exception) if isinstance(outcome, Error) else Reply(0, outcome.value)


def _renamed(given: dict[str, Any]) -> dict[str, Any]:
    names = {"local_env_runner": "local_worker", "remote_worker_ids": "worker_ids"}
    return {names.get(name, name): value for name, value in given.items()}


def _refuse(keywords: Mapping[str, Any]) -> None:
    for name, value in keywords.items():
        if name not in _REFUSED:
            raise unexpected("the call", name, _REFUSED)
        if value:
            raise ValueError(f"{name}={value!r} is not served: {_REFUSED[name]}")


def _calls(func: Any, kwargs: Any, workers: Sequence[int], *, one_each: bool) -> list[tuple[int, Call]]:
    """The calls with their workers: a single one goes to each worker; a list is one each, or dealt in turn, each once.

    Raises:
        ValueError: lists of different lengths, or of another number than there are workers for one each.
    """
    lists = [given for given in (func, kwargs) if isinstance(given, list | tuple)]
    number = len(lists[0]) if lists else len(workers)
    if one_each and number != len(workers):
        why = f"{len(workers)} workers are addressed: {list(workers)}; give one each, or a single one for all"
        raise ValueError(f"func or kwargs is a list of {number}, and {why}")
    if any(len(each) != number for each in lists):
        raise ValueError(f"func and kwargs are lists of different lengths, {sorted(map(len, lists))}; give one each")
    functions, keywords = (given if isinstance(given, list | tuple) else [given] * number for given in (func, kwargs))
    return [
        (w, ("run", each, given or {})) for w, each, given in zip(cycle(workers), functions, keywords, strict=False)
    ]


def _call_with_id(func: Callable[[int, Any], Any], worker: Any) -> Any:
    return func(worker.worker_index, worker)
