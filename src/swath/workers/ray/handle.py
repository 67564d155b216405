"""What the driver holds of a Ray actor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swath.workers.base import Job, OwingHandle
from swath.workers.tickets import Ticket


class RayHandle(OwingHandle):
    """An actor, and the calls that it has not answered.

    Args:
        job: how it is brought up.
        options: what Ray is asked for.

    Attributes:
        actor: Ray's handle; the methods that the job makes public are called with `actor.method.remote(…)`.
        ask: calls its object by a method's name and packed arguments; gives references to the reply and a large body.
        whole: likewise, with a reference to the reply only: quicker, but a large body comes with it, wanted or not.
        aside: as `ask`, in a thread of the actor's own: also while another call is being answered.
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
