"""One question to several workers, and their answers: waited for together, in order of their ids.

calls ─▶ free: sent ─▶ answered │ lost │ late, kept under a tag
         late with an earlier one: sent when that is answered, if there is time
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, TypeAlias

from swath.errors import WorkerLate, WorkerLost
from swath.rollout_workers.worker_set.calls import Call
from swath.rollout_workers.worker_set.crew import Crew
from swath.rollout_workers.worker_set.requests import OnError, Shelf
from swath.workers.outcome import Error, Outcome, Value
from swath.workers.tickets import Ticket

Outcomes: TypeAlias = dict[int, Outcome]


def ask(crew: Crew, shelf: Shelf, calls: Mapping[int, Call], timeout: float, local: Callable[[], Outcomes]) -> Outcomes:
    """What comes of each call, by id; those of workers whose loss is borne are among them.

    Args:
        crew: of workers.
        shelf: where late answers are kept.
        calls: by id.
        timeout: seconds; 0: send, and wait for nobody.
        local: what is done here meanwhile.
    """
    until = monotonic() + timeout
    waiting, sent = dict(calls), dict[int, Ticket]()
    _send_free(crew, waiting, sent)
    here = local()
    if timeout == 0:
        shelf.keep_unasked(crew, [*sent.values()])
        return here
    while ((open_ := _open(crew, waiting, sent)) or crew.coming(waiting)) and (left := until - monotonic()) > 0:
        crew.wait(open_, left)
        _send_free(crew, waiting, sent)
    shelf.keep(crew, [ticket for ticket in sent.values() if not ticket.done])
    there = {worker: _outcome(crew, ticket, timeout) for worker, ticket in sent.items()}
    busy = {worker: Error(_busy(crew, worker, timeout)) for worker in waiting}
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


def _send_free(crew: Crew, waiting: dict[int, Call], sent: dict[int, Ticket]) -> None:
    for worker in [each for each in waiting if crew.is_free(each)]:
        sent[worker] = crew.send(worker, "run", *waiting.pop(worker))


def _open(crew: Crew, waiting: Mapping[int, Call], sent: Mapping[int, Ticket]) -> Sequence[Ticket]:
    """What is waited for."""
    owed = [ticket for worker in waiting for ticket in crew.owed(worker)]
    return [ticket for ticket in (*sent.values(), *owed) if not ticket.done]


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
