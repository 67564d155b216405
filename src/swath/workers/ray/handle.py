"""What the driver holds of a Ray actor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from swath.workers.base import Job, OwingHandle
from swath.workers.ray.messages import Wire
from swath.workers.tickets import Ticket

Asking: TypeAlias = Callable[[str, Wire], Sequence[Any]]


class RayHandle(OwingHandle):
    """An actor, and the calls that it has not answered.

    Args:
        job: how it is brought up.
        options: what Ray is asked for.

    Attributes:
        actor: Ray's handle; the methods that the job makes public are called with `actor.method.remote(…)`.
        ask: calls its object; see `asking`.
        whole: likewise, with one result: quicker, but a large body comes with the reply, wanted or not.
        aside: likewise, in a thread of its own.
        light: whether the body of its last parcel was small.
        lasts: whether it lives until it is killed, whoever holds it.
        killed: why we end it, if we do.
    """

    actor: Any = None
    ask: Any = None
    whole: Any = None
    aside: Any = None
    light = False
    lasts = False

    def __init__(self, job: Job, options: Mapping[str, Any]) -> None:
        super().__init__(job)
        self.placed = Ticket(job.name, "place")
        self.options = options
        self.killed: str | None = None
        for ticket in (self.placed, self.ready, self.ended):
            self.opened(ticket)


def asking(actor: Any) -> Asking:
    """A function that calls the actor's object by a method's name and packed arguments.

    What it returns are references to the reply and to the large body of a parcel.
    """
    return _calling(actor.swath_answer.options(num_returns=2))


def asking_whole(actor: Any) -> Asking:
    """The same with one result, the reply: there is no reference to a body."""
    ask = _calling(actor.swath_whole)
    return lambda method, args: (ask(method, args), None)


def asking_aside(actor: Any) -> Asking:
    """The same as `asking`, in a thread of the actor's own: also while another call is being answered."""
    return _calling(actor.swath_aside.options(num_returns=2, concurrency_group="aside"))


def _calling(answer: Any) -> Callable[[str, Wire], Any]:
    return lambda method, args: answer.remote(method.encode(), args)  # bytes need not be pickled
