"""One worker in this process, and its weights: a group of one, whose member is called directly.

    request ─▶ carried out in the thread that waits     call ─▶ carried out at once, between two requests

No copies, no deaths: what the member is given and what it gives are the objects themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Never

from swath.errors import FleetFailed
from swath.group.gate import Gate
from swath.weights.channel import Channel, Life, Models, Update
from swath.workers.base import Handle, Job
from swath.workers.fleet_state import FIRST, Standing
from swath.workers.hosting import attempted
from swath.workers.outcome import Error
from swath.workers.packing import Parcel
from swath.workers.tickets import Received, Ticket


class LocalFleet:
    """The one worker, where others have a fleet. Any thread may use it.

    Args:
        member: answers requests.
        gate: puts requests, calls and publications of several threads in order.

    Attributes:
        up: it can always be called.
    """

    changes = restarts = 0
    late = left_behind = ()
    failure: FleetFailed | None = None

    def __init__(self, member: Any, gate: Gate) -> None:
        self.member, self._gate = member, gate
        self.up: Mapping[int, Handle] = {0: Handle(Job(object, FIRST))}
        self._open: dict[Ticket, Sequence[Any]] = {}

    def standings(self) -> dict[int, Standing]:
        """It is up."""
        return {0: Standing(phase="up")}

    def handle(self, worker: int) -> Handle:
        """Its handle."""
        return self.up[worker]

    def call(self, handle: Handle, method: str, update: Any, *call: Any, late: bool = False) -> Ticket:  # noqa: ARG002
        """Call the member between two requests; a request (`late`) is left for `wait`."""
        ticket = Ticket(handle.name, method)
        if late:
            self._open[ticket] = call
        else:
            with self._gate.control():
                ticket.settle(attempted(self._carry_out, *call))
        return ticket

    def wait(
        self,
        tickets: Sequence[Ticket],
        timeout: float | None,  # noqa: ARG002  a request is not broken off
        interrupted: Callable[[], bool],  # noqa: ARG002  the member looks at the gate after each step
        seen: int,  # noqa: ARG002  nothing changes
    ) -> None:
        """Carry out requests until one of these is done. Ctrl-C leaves the one that it broke off for the next time."""
        while tickets and not any(ticket.done for ticket in tickets):
            with self._gate.collecting():
                ticket = next(iter(self._open))
                ticket.settle(attempted(self._carry_out, *self._open[ticket]))
                del self._open[ticket]

    def answers(self, tickets: Sequence[Ticket], timeout: float | None) -> None:
        """They are there."""

    def settle(self, workers: Sequence[int]) -> None:
        """It can always be called."""

    def look(self) -> None:
        """Nothing becomes of it."""

    def wake(self) -> None:
        """Nobody waits but for the gate."""

    def close(self, timeout: float, *, ask: bool = True) -> list[BaseException]:  # noqa: ARG002  at once
        """Ask the member to close; what that raised."""
        closed = attempted(self.member.close) if ask else None
        return [closed.exception] if isinstance(closed, Error) else []

    def replace(self, handle: Handle, cause: BaseException) -> Never:  # noqa: ARG002  there is no other
        """There is no other: the cause is raised."""
        raise cause

    def _carry_out(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
        value = getattr(self.member, method)(*args, **(kwargs or {}))
        return Received(value.head, lambda: value.body) if isinstance(value, Parcel) else value


class Here(NamedTuple):
    """A value of this process, as it is."""

    value: Any

    def open(self) -> Any:
        """The value."""
        return self.value


class LocalChannel(Channel):
    """The weights of the one worker: they are copied into its models, now or right after the running request.

    Args:
        member: takes them.
        gate: of its fleet.
    """

    def __init__(self, member: Any, gate: Gate) -> None:
        super().__init__(Here)
        self._member, self._gate = member, gate

    def publish_each(self, models: Mapping[int | None, Models], version: int | None = None) -> int:
        """As that of others; who publishes faster than the worker can take it skips versions."""
        self._gate.require_open()
        number = super().publish_each(models, version)
        self._gate.soon(self._bring)
        return number

    @contextmanager
    def update_for(self, life: Life) -> Iterator[Update | None]:  # noqa: ARG002  there is one
        """Nothing rides along: what is new is brought before the next request."""
        yield None

    def _bring(self) -> None:
        with super().update_for(FIRST) as update:
            if update is not None:
                self._member.take(update.opened(), update.version)
                self.withdraw(update.models)  # the models have them
