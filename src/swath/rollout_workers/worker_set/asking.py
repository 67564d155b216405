"""One question to several workers, and their answers: waited for together, in order of their ids.

calls ─▶ a round ─▶ answered │ lost │ late, kept under the tag "late" │ never asked
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, TypeAlias

from swath.errors import WorkerLate, WorkerLost
from swath.rollout_workers.worker_set.calls import Call
from swath.rollout_workers.worker_set.crew import Crew
from swath.rollout_workers.worker_set.requests import LATE, OnError, Requests
from swath.rollout_workers.worker_set.round import Round
from swath.workers.outcome import Error, Outcome, Value
from swath.workers.tickets import Ticket

Outcomes: TypeAlias = dict[int, Outcome]


def ask(
    crew: Crew,
    requests: Requests,
    calls: Mapping[int, Call],
    timeout: float,
    *,
    local: Callable[[], Outcomes] = dict,
    tag: Any = LATE,
) -> Outcomes:
    """What comes of each call, by id; those of workers whose loss is borne are among them.

    Args:
        crew: of workers.
        requests: keep late answers.
        calls: by id.
        timeout: seconds; 0: send, and wait for nobody.
        local: what is done here meanwhile.
        tag: under which late answers are kept.
    """
    until = monotonic() + timeout
    asked = Round(crew, calls, lambda worker: crew.send(worker, "run", *calls[worker]))
    here = local()
    if timeout == 0:
        requests.keep_late(crew, asked.sent.values(), tag)
        return here
    asked.wait(until, for_returning=True)
    crew.set_late(asked.unanswered)
    requests.keep_late(crew, asked.unanswered, tag)
    there = {worker: _outcome(crew, ticket, timeout) for worker, ticket in asked.sent.items()}
    busy = {worker: Error(_busy(crew, worker, timeout)) for worker in asked.waiting}
    return here | dict(sorted((there | busy).items()))


def entries(outcomes: Outcomes, on_error: OnError, is_borne: Callable[[BaseException], bool]) -> list[tuple[int, Any]]:
    """The answers with ids, the local worker's first.

    Args:
        outcomes: by id.
        on_error: raise the first, or have errors as entries.
        is_borne: whether it is the loss of a worker that is borne.

    Raises:
        Exception: the first error by id, all outcomes in its `results`, unless errors are entries; the loss of a
            worker that is borne is none, and has no entry.
    """
    if on_error == "return":
        return [(worker, _entry(outcome)) for worker, outcome in outcomes.items()]
    told = {
        worker: each for worker, each in outcomes.items() if not (isinstance(each, Error) and is_borne(each.exception))
    }
    everything = [(worker, _entry(outcome)) for worker, outcome in told.items()]
    for outcome in told.values():
        if isinstance(outcome, Error):
            outcome.exception.results = everything  # type: ignore[attr-defined]  # for whoever catches it
            raise outcome.exception
    return everything


def _outcome(crew: Crew, ticket: Ticket, timeout: float) -> Outcome:
    if not ticket.done:
        worker = ticket.name.worker
        return Error(
            WorkerLate(
                f"worker {worker} has not answered within {timeout:g} s; its answer can be fetched later, "
                "by fetch_ready_async_reqs(tags='late')",
                workers=(worker,),
                deadline=timeout,
            )
        )
    error = crew.error_of(ticket)
    if error is None:
        crew.deaths.answered()
        return Value(ticket.value)
    crew.deaths.told(ticket.name)
    return Error(error)


def _busy(crew: Crew, worker: int, timeout: float) -> Exception:
    if crew.coming([worker]):
        return WorkerLate(
            f"worker {worker} was not asked: it has not come back within {timeout:g} s",
            workers=(worker,),
            deadline=timeout,
        )
    if worker in crew.fleet.up:
        return WorkerLate(
            f"worker {worker} was not asked: for {timeout:g} s it has not answered an earlier call either",
            workers=(worker,),
            deadline=timeout,
        )
    return WorkerLost(f"worker {worker} was lost before it could be asked", worker=worker)


def _entry(outcome: Outcome) -> Any:
    return outcome.value if isinstance(outcome, Value) else outcome
