"""One question to several workers, and their answers: waited for together, in order of their ids.

calls ─▶ a round ─▶ answered │ lost │ late, kept under the tag "late" │ never asked
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, TypeAlias

from swath.errors import WorkerLate, WorkerLost
from swath.rollout_workers.worker_set.crew import Crew
from swath.rollout_workers.worker_set.requests import LATE, OnError, Requests
from swath.rollout_workers.worker_set.resident import Call
from swath.workers.outcome import Error, Outcome, Value
from swath.workers.tickets import Ticket


class Round:
    """Something that is sent to several workers, once to each; to those that are free at once.

    Args:
        crew: of workers.
        workers: ids.
        send: sends it to a worker that is free; None if there is nothing to send to it.

    Attributes:
        waiting: ids of workers that were not free so far.
        sent: by id, in the order in which they were sent.
    """

    def __init__(self, crew: Crew, workers: Iterable[int], send: Callable[[int], Ticket | None]) -> None:
        self.waiting, self.sent = list(workers), dict[int, Ticket]()
        self._crew, self._send = crew, send
        self._send_to_free()

    @property
    def unanswered(self) -> list[Ticket]:
        """What was sent, and is not answered yet."""
        return [ticket for ticket in self.sent.values() if not ticket.done]

    def wait(self, until: float, *, for_returning: bool) -> None:
        """Wait until all have answered, or it is time.

        Args:
            until: when.
            for_returning: also until those that are coming back have come, and have answered.
        """
        while (open_ := self._open()) or (for_returning and self._crew.coming(self.waiting)):
            if (left := until - monotonic()) <= 0:
                return
            self._crew.wait(open_, left)
            self._send_to_free()

    def _send_to_free(self) -> None:
        for worker in [each for each in self.waiting if self._crew.is_free(each)]:
            self.waiting.remove(worker)
            if (ticket := self._send(worker)) is not None:
                self.sent[worker] = ticket

    def _open(self) -> list[Ticket]:
        """What is waited for."""
        owed = [ticket for worker in self.waiting for ticket in self._crew.owed(worker)]
        return [*self.unanswered, *(ticket for ticket in owed if not ticket.done)]


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


def publish(crew: Crew, weights: Mapping[str, Any], own_version: int, workers: Collection[int] | None = None) -> int:
    """Make weights the newest of all workers, or of some; they are copied.

    Args:
        crew: whose.
        weights: by policy id; those of other policies stay.
        own_version: of the source, which the new version is above.
        workers: ids; None: all, also those to come.

    Returns:
        The version.
    """
    return crew.channel.publish(weights, workers, max(crew.channel.version, own_version) + 1)


def spread(crew: Crew, workers: Sequence[int], timeout: float) -> None:
    """Have these apply what is the newest for them, and wait for it.

    Raises:
        WorkerLate: some have not.
        Exception: what one of them raised.
    """
    until = monotonic() + timeout
    told = Round(crew, workers, crew.bring)
    told.wait(until, for_returning=False)
    crew.tend()
    unanswered = told.unanswered
    crew.set_late(unanswered)
    _raise_late(crew, [*told.waiting, *(ticket.name.worker for ticket in unanswered)], timeout)
    for ticket in told.sent.values():
        error = crew.error_of(ticket)
        if error is not None and not crew.is_borne(error):
            crew.deaths.told(ticket.name)
            raise error


def _raise_late(crew: Crew, late: Sequence[int], timeout: float) -> None:
    there = [worker for worker in sorted(late) if worker in crew.fleet.up]
    if there:
        raise WorkerLate(
            f"workers {there} have not applied version {crew.channel.version} within {timeout:g} s; they do "
            "before their next fragment",
            workers=tuple(there),
            deadline=timeout,
        )
