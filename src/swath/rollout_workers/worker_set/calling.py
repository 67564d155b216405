"""How functions are called in all workers of a set, waited for or not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from swath.nearest import unexpected
from swath.options import one_of, seconds
from swath.rollout_workers.worker_set.asking import Outcomes, ask, entries
from swath.rollout_workers.worker_set.crew import Crew
from swath.rollout_workers.worker_set.group import PATIENCE_S, Group, seconds_to_wait
from swath.rollout_workers.worker_set.requests import LATE, OnError, Reply
from swath.rollout_workers.worker_set.resident import Call, Functions, Keywords, called, in_turn, one_each
from swath.workers.hosting import attempted

_REFUSED = {
    "return_obj_refs": "answers are values; call `ray.put` in the function to keep large ones in Ray's store",
    "mark_healthy": "the set sees itself which workers live; leave it out",
}
"""Keywords of RLlib's that are not served, and what to do instead."""


def refuse(keywords: Mapping[str, Any]) -> None:
    """Raise for keywords that are not served.

    Raises:
        ValueError: a known one is true.
        TypeError: an unknown one.
    """
    for name, value in keywords.items():
        if name not in _REFUSED:
            raise unexpected("the call", name, _REFUSED)
        if value:
            raise ValueError(f"{name}={value!r} is not served: {_REFUSED[name]}")


class Calling(Group):
    """Calls."""

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
            One entry per worker: the local one's, then by id. Workers whose loss is borne have none.

        Raises:
            WorkerLate: a worker has not answered in time; its answer can be fetched later, under the tag "late".
            WorkerLost: a worker died, and that is not borne.
            FleetFailed: no remote workers are left, or too many died in a row.
            ValueError: an id that there is not; lists of another length; a time or a way with errors that there is not.
                Nobody was asked then.
            Exception: what the function raised.
        """
        refuse(refused)
        timeout = seconds_to_wait(timeout_seconds)
        one_of("on_error", on_error, OnError)
        crew = self._remote()
        local = [0] if local_worker and self._local_env_runner is not None else []
        calls = one_each(func, kwargs, [*local, *self._addressed(crew, worker_ids)])
        here = {worker: calls.pop(worker) for worker in local}
        if crew is not None and healthy_only:
            calls = {worker: call for worker, call in calls.items() if worker in crew.fleet.up}
        outcomes = self._outcomes(crew, here, calls, timeout)
        if on_error == "raise" and crew is not None and (failure := crew.fleet.failure) is not None:
            raise failure
        told = entries(outcomes, on_error, _nothing_is_lost if crew is None else crew.is_borne)
        if timeout == 0:
            return []
        return told if with_ids else [entry for _, entry in told]

    def foreach_worker_async(
        self,
        func: Functions,
        *,
        tag: Any = None,
        kwargs: Keywords = None,
        healthy_only: bool = True,
        worker_ids: Sequence[int] | None = None,
    ) -> int:
        """Send a call to remote workers; the answers are fetched by `fetch_ready_async_reqs`.

        Args:
            func: as of `foreach_worker`; a list is dealt to the workers in turn, each item once.
            tag: whose requests these are; None is a tag, too.
            kwargs: as of `foreach_worker`.
            healthy_only: False waits for those that are coming back.
            worker_ids: to which; None: all.

        Returns:
            How many went out: at most `max_requests_in_flight_per_env_runner` per worker and tag are on their way.
        """
        crew = self._remote()
        if crew is None:
            return 0
        workers = self._addressed(crew, worker_ids)
        if not healthy_only:
            crew.wait_for(workers, PATIENCE_S)
        able = [worker for worker in workers if worker in crew.fleet.up]
        return self._requests.send(crew, in_turn(func, kwargs, able), tag)

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
            WorkerLost: a worker died, and that is not borne.
            Exception: what a call raised.
        """
        timeout = None if timeout_seconds is None else seconds("timeout_seconds", timeout_seconds)
        if on_error is not None:
            one_of("on_error", on_error, OnError)
        refuse(refused)
        crew = self._looked_after() if on_error == "return" else self._remote()
        if crew is None:
            return []
        wanted = None if tags is None else [tags] if isinstance(tags, str) else list(tags)
        return self._requests.fetch(crew, wanted, timeout, on_error or "raise")

    def foreach_worker_async_fetch_ready(
        self,
        func: Functions,
        *,
        tag: Any = None,
        kwargs: Keywords = None,
        healthy_only: bool = True,
        worker_ids: Sequence[int] | None = None,
        timeout_seconds: float | None = 0.0,
        on_error: OnError | None = None,
        **refused: Any,
    ) -> list[Reply]:
        """Fetch the answers of a tag, then send the next call; see the two methods."""
        replies = self.fetch_ready_async_reqs(tags=[tag], timeout_seconds=timeout_seconds, on_error=on_error, **refused)
        self.foreach_worker_async(func, tag=tag, kwargs=kwargs, healthy_only=healthy_only, worker_ids=worker_ids)
        return replies

    def num_in_flight_async_reqs(self, tag: Any = None) -> int:
        """Asynchronous requests that are not answered; None: of all tags."""
        return self._requests.number(tag)

    def _addressed(self, crew: Crew | None, worker_ids: Sequence[int] | None) -> list[int]:
        known = [] if crew is None else crew.ids()
        if worker_ids is None:
            return known
        there = set(known) if crew is None else {*crew.fleet.standings()} - crew.removed
        unknown = [each for each in worker_ids if each not in there]
        if unknown:
            raise ValueError(f"worker_ids={list(worker_ids)} has {unknown}, and the remote workers are {sorted(there)}")
        return [each for each in dict.fromkeys(worker_ids) if each in known]

    def _outcomes(self, crew: Crew | None, here: dict[int, Call], calls: dict[int, Call], timeout: float) -> Outcomes:
        def local() -> Outcomes:
            return {worker: attempted(called, self._local_env_runner, call) for worker, call in here.items()}

        return local() if crew is None else ask(crew, self._requests, calls, timeout, local=local)

    def _ask_remote(self, func: Any, timeout: float, tag: Any = LATE) -> Outcomes:
        """What comes of a call in all remote workers that can be called now; late answers are kept under the tag."""
        crew = self._remote()
        if crew is None:
            return {}
        calls = one_each(func, None, crew.ids())
        able = {worker: call for worker, call in calls.items() if worker in crew.fleet.up}
        return ask(crew, self._requests, able, timeout, tag=tag)


def _nothing_is_lost(_: BaseException) -> bool:
    return False
