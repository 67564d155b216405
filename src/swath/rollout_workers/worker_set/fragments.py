"""Fragments of the workers of a set, as one batch: each worker's share, a lost one's collected by the others.

ask the free ─▶ out ─▶ answered ─▶ in order of (worker, request) ─▶ a batch that the caller owns
    ▲             ├─▶ lost: its share is asked for again
    │             ├─▶ raised: raised here, the other fragments stay for the next call
    └─ more? ◀────┴─▶ late: stays out, for the next call
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeAlias

from swath.errors import PayloadLost, WorkerLate, WorkerLost
from swath.rollout_workers.batches.joining import concat_samples
from swath.rollout_workers.batches.leaves import holds_objects, leaves
from swath.rollout_workers.batches.multi_agent import MultiAgentBatch
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.worker_set.crew import Crew
from swath.rollout_workers.worker_set.resident import NotBrought
from swath.workers.outcome import Error
from swath.workers.tickets import Received, Ticket

Batch: TypeAlias = SampleBatch | MultiAgentBatch


@dataclass(eq=False)
class AskedFragment:
    """A share that a worker was asked for.

    Attributes:
        ticket: of the request.
        number: of the request; they are counted over all workers.
        steps: env steps that are expected, or that it has.
        received: the batch, when it is there.
        batch: views of its arrays, good until it is closed.
    """

    ticket: Ticket
    number: int
    steps: int
    received: Received | None = None
    batch: Any = None

    @property
    def place(self) -> tuple[int, int]:
        """Where it comes among others."""
        return self.ticket.name.worker, self.number


class Fragments:
    """What was asked for and is not delivered. Used by one thread at a time.

    Args:
        expected: env steps of a fragment of a worker, by id.
    """

    def __init__(self, expected: Callable[[int], int]) -> None:
        self._expected = expected
        self._asked = self._asked_before = 0
        self._out: list[AskedFragment] = []

    def collect(self, crew: Crew, min_env_steps: int | None, timeout: float) -> list[AskedFragment]:
        """One fragment per worker, or as many as it takes; those that are in time.

        Args:
            crew: of workers.
            min_env_steps: ask on until there are so many; None: one per worker.
            timeout: seconds.

        Returns:
            Fragments in order, to be delivered and closed.

        Raises:
            WorkerLate: none was in time.
            WorkerLost: a worker was lost, and that is not borne.
            Exception: what an env or a policy raised. In all cases other fragments stay for the next call.
        """
        until, shares = monotonic() + timeout, len(crew.ids())

        def enough(fragments: Sequence[AskedFragment]) -> bool:
            if min_env_steps is None:
                return len(fragments) >= shares
            return sum(each.steps for each in fragments) >= min_env_steps

        self._asked_before = self._asked
        self._settle(crew)
        while not enough(self._there()):
            self._ask(crew, enough)
            if (left := until - monotonic()) <= 0:
                self._set_late(crew)
                break
            crew.wait([*self._unanswered(), *(owed for worker in crew.up() for owed in crew.owed(worker))], left)
            self._settle(crew)
        return self._delivered(crew, timeout)

    def forget(self, worker: int) -> None:
        """What a worker still owes is not wanted; what it has delivered is."""
        self._out = [each for each in self._out if each.received is not None or each.ticket.name.worker != worker]

    def _there(self) -> list[AskedFragment]:
        return [each for each in self._out if each.received is not None]

    def _unanswered(self) -> list[Ticket]:
        return [each.ticket for each in self._out if not each.ticket.done]

    def _ask(self, crew: Crew, enough: Callable[[Sequence[AskedFragment]], bool]) -> None:
        """Ask the free, those who have given least first, for as much as is missing."""
        while not enough(self._out) and (free := self._free(crew)):
            worker = min(free, key=lambda each: (self._given(each), each))
            self._asked += 1
            self._out.append(AskedFragment(crew.send(worker, "sample"), self._asked, self._expected(worker)))

    def _free(self, crew: Crew) -> list[int]:
        busy = {each.ticket.name.worker for each in self._out if each.received is None}
        return [worker for worker in crew.up() if worker not in busy and crew.is_free(worker)]

    def _given(self, worker: int) -> int:
        return sum(each.ticket.name.worker == worker for each in self._out)

    def _settle(self, crew: Crew) -> None:
        """Take what is answered in; what a lost worker owed is out no more.

        Raises:
            Exception: what a worker raised.
        """
        for fragment in [each for each in self._out if each.ticket.done and each.received is None]:
            if (error := self._taken_in(crew, fragment)) is None:
                crew.deaths.answered()
                continue
            self._out.remove(fragment)
            if isinstance(error, PayloadLost | WorkerLost | WorkerLate):
                crew.fragments_lost += 1
                crew.fleet.look()  # it may have died since the last look, and is not to be asked again
            if _was_not_begun(fragment.ticket) and fragment.number <= self._asked_before:
                continue
            if isinstance(error, PayloadLost) or crew.is_borne(error) or _hung_and_borne(crew, error):
                crew.events.note(fragment.ticket.name, "discarded", f"a fragment: {error}")
                continue
            crew.deaths.told(fragment.ticket.name)
            raise error

    @staticmethod
    def _taken_in(crew: Crew, fragment: AskedFragment) -> BaseException | None:
        """Open the answer, as part of the fragment; what is to be seen in its place, if there is none."""
        error = crew.error_of(fragment.ticket)
        if error is not None:
            return error
        received = fragment.ticket.value
        try:
            fragment.batch = received.open()
        except PayloadLost as lost:
            return lost
        fragment.received, fragment.steps = received, received.head
        crew.frames[fragment.ticket.name.worker] += received.head
        return None

    def _set_late(self, crew: Crew) -> None:
        crew.set_late([ticket for ticket in self._unanswered() if ticket not in crew.owed(ticket.name.worker)])

    def _delivered(self, crew: Crew, timeout: float) -> list[AskedFragment]:
        there = sorted(self._there(), key=lambda each: each.place)
        if not there:
            workers = tuple(sorted({ticket.name.worker for ticket in self._unanswered()} or crew.ids()))
            raise WorkerLate(
                f"no fragment of workers {list(workers)} was there within {timeout:g} s (sample_timeout_s); "
                "they are delivered later",
                workers=workers,
                deadline=timeout,
            )
        self._out = [each for each in self._out if each.received is None]
        crew.counters.deliver(sum(each.steps for each in there))
        return there


def _was_not_begun(ticket: Ticket) -> bool:
    """Whether its worker has refused what was the newest then."""
    return isinstance(ticket.outcome, Error) and isinstance(ticket.outcome.exception, NotBrought)


def _hung_and_borne(crew: Crew, error: BaseException) -> bool:
    return crew.deaths.tolerant and isinstance(error, WorkerLate)


def joined(fragments: Sequence[AskedFragment], *, concat: bool) -> Batch | list[Batch]:
    """The batches, as one or as a list; the caller's own. The fragments are closed."""
    try:
        for each in fragments:
            _own_objects(each.batch)
        if concat and len(fragments) > 1:
            return concat_samples([each.batch for each in fragments])
        batches: list[Batch] = [each.batch.copy() for each in fragments]
        return batches[0] if concat else batches
    finally:
        for each in fragments:
            each.batch = None
            if each.received is not None:
                each.received.close()


def _own_objects(batch: Batch) -> None:
    """Copy objects, infos for instance, which may hold arrays that are views: joining copies references to them."""
    for each in _parts(batch):
        for name, column in each.items():
            if any(holds_objects(leaf) for _, leaf in leaves(column)):
                dict.__setitem__(each, name, copy.deepcopy(column))


def local_batches(worker: Any, min_env_steps: int | None) -> list[Batch]:
    """As much of the local worker."""
    batches: list[Batch] = [worker.sample()]
    while min_env_steps is not None and sum(batch.env_steps() for batch in batches) < min_env_steps:
        batches.append(worker.sample())
    return batches


def as_asked(batches: list[Batch], *, concat: bool) -> Batch | list[Batch]:
    """As one batch, or as they are."""
    if not concat:
        return batches
    return batches[0] if len(batches) == 1 else concat_samples(batches)


def _parts(batch: Batch) -> Iterable[SampleBatch]:
    return batch.policy_batches.values() if isinstance(batch, MultiAgentBatch) else [batch]
