"""Calls of functions in the workers of a set: one function for all or one each, blocking or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import cycle
from typing import Any, Literal, TypeAlias

from swath.group.group import Request
from swath.nearest import unexpected_keyword
from swath.options import seconds
from swath.rollout_workers.worker_set.actor import run_on
from swath.rollout_workers.worker_set.group import LATE, Batch, Purpose, Reply, RolloutGroup
from swath.workers.hosting import run_and_capture
from swath.workers.outcome import Error

Function: TypeAlias = Callable[..., Any] | str
Functions: TypeAlias = Function | Sequence[Function]
Keywords: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
Call: TypeAlias = tuple[str, Function, Mapping[str, Any]]
OnError: TypeAlias = Literal["raise", "return"]

TIMEOUT_S = 300.0
"""Default time limit of a call."""

MOST_LATE = 100
"""How many late answers are kept."""

_REFUSED = {
    "return_obj_refs": "answers are values; call `ray.put` in the function to keep large ones in Ray's store",
    "mark_healthy": "the set sees itself which workers live; leave it out",
}
"""Keywords of RLlib that are not served, and what to do instead."""


def seconds_to_wait(timeout_seconds: float | None, default: float = TIMEOUT_S) -> float:
    """Return how long a caller waits; None: the default.

    Raises:
        ValueError: `timeout_seconds` is no number of seconds.
    """
    return default if timeout_seconds is None else seconds("timeout_seconds", timeout_seconds)


def refuse(keywords: Mapping[str, Any]) -> None:
    """Raise for a keyword that is unknown, or that asks for something that is not served."""
    for name, value in keywords.items():
        if name not in _REFUSED:
            raise unexpected_keyword("the call", name, _REFUSED)
        if value:
            raise ValueError(f"{name}={value!r} is not served: {_REFUSED[name]}")


def rename_keywords(keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords under the names of `foreach_worker`."""
    names = {"local_env_runner": "local_worker", "remote_worker_ids": "worker_ids"}
    return {names.get(name, name): value for name, value in keywords.items()}


def assign_calls(func: Any, kwargs: Any, workers: Sequence[int], *, one_each: bool) -> list[tuple[int, Call]]:
    """Return workers with their calls: a single call goes to each worker, a list is assigned in turn.

    Raises:
        ValueError: lists of different lengths, or with `one_each` of another number than there are workers.
    """
    lists = [argument for argument in (func, kwargs) if isinstance(argument, list | tuple)]
    number = len(lists[0]) if lists else len(workers)
    if one_each and number != len(workers):
        reason = f"{len(workers)} workers are addressed: {list(workers)}; give one each, or a single one for all"
        raise ValueError(f"func or kwargs is a list of {number}, and {reason}")
    if any(len(calls) != number for calls in lists):
        raise ValueError(f"func and kwargs are lists of different lengths, {sorted(map(len, lists))}; give one each")
    functions, keywords = (
        argument if isinstance(argument, list | tuple) else [argument] * number for argument in (func, kwargs)
    )
    calls = [("run", function, keyword or {}) for function, keyword in zip(functions, keywords, strict=True)]
    return list(zip(cycle(workers), calls, strict=False)) if workers else []


def call_workers(
    group: RolloutGroup, local: Any, assigned: Mapping[int, Call], timeout: float, *, raises: bool
) -> list[tuple[int, Any]]:
    """Call workers, wait for their answers, and return `(id, answer)` of each; see `WorkerSet.foreach_worker`.

    Args:
        group: the remote workers.
        local: the local worker, or None.
        assigned: calls by worker; 0 is the local one.
        timeout: for all answers together; 0: do not wait.
        raises: raise the first error; otherwise errors are entries.
    """
    remote = {worker: call for worker, call in assigned.items() if worker}
    requests = dict[int, Request]()
    group.call_free(remote, requests)
    replies = list[Reply]()
    if 0 in assigned:
        outcome = run_and_capture(run_on, local, *assigned[0][1:])
        error = outcome.exception if isinstance(outcome, Error) else None
        replies.append(Reply(0, None if isinstance(outcome, Error) else outcome.value, error=error))
    replies += group.replies(remote, requests, timeout) if timeout else []
    selected = [reply for reply in replies if not (raises and group.is_tolerated(reply.error))]
    entries = [(reply.worker, reply.result if reply.error is None else Error(reply.error)) for reply in selected]
    for request in group.tagged([LATE])[:-MOST_LATE]:
        group.cancel(request)
    if raises:
        group.require_enough_workers()
        for error in [reply.error for reply in selected if reply.error is not None]:
            error.results = entries  # type: ignore[attr-defined]  # for the caller that catches it
            raise error
    return entries if timeout else []


def send_to_free(group: RolloutGroup, assigned: Sequence[tuple[int, Call]], tag: Any, limit: int) -> int:
    """Send calls to free workers that have fewer than `limit` open requests of a tag; return how many were sent."""
    n_open, free, n_sent = Counter(request.worker for request in group.tagged([tag])), group.free(), 0
    for worker, call in assigned:
        if worker in free and n_open[worker] < limit:
            group.request(worker, *call, purpose=Purpose(tag))
            n_open[worker] += 1
            n_sent += 1
    return n_sent


def fetch(group: RolloutGroup, tags: Collection[Any] | None, timeout: float, *, raises: bool) -> list[Reply]:
    """Return the replies to requests with these tags that have arrived; see `WorkerSet.fetch_ready_async_reqs`."""
    group.wait_until(lambda: not group.unanswered(tags), timeout)
    replies = list[Reply]()
    done = [request for request in group.tagged(tags) if request.ticket.done]
    for request in sorted(done, key=lambda request: raises and request.ticket.error is None):  # errors first
        reply = group.reply(request)
        if raises and group.is_tolerated(reply.error):
            continue
        if raises and reply.error is not None:
            raise reply.error
        replies.append(reply)
    return replies


def choose(name: str, value: Any, other: str, other_value: Any) -> Any:
    """Return the value under either of two names, or raise `ValueError` for two values."""
    if None not in (value, other_value) and value != other_value:
        raise ValueError(f"{name}={value!r} and {other}={other_value!r} are two names of one thing; give one of them")
    return other_value if value is None else value


def synchronous_parallel_sample(
    *, worker_set: Any, max_env_steps: int | None = None, max_agent_steps: int | None = None, concat: bool = True
) -> Batch | list[Batch]:
    """Collect with all workers of a set, as its `sample` does.

    Args:
        worker_set: a `WorkerSet`.
        max_env_steps: number of env steps to collect at least; None: one fragment of each worker.
        max_agent_steps: the same in steps of agents.
        concat: one batch; False: a list.

    Raises:
        ValueError: both limits were given.
    """
    steps = {"min_env_steps": max_env_steps, "min_agent_steps": max_agent_steps}
    batches: Batch | list[Batch] = worker_set.sample(**steps, concat=concat)
    return batches
