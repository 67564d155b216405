"""What an inbox is told, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar

from swath.errors import Closed as ClosedError
from swath.errors import SwathError

Request = TypeVar("Request")
Outcome = TypeVar("Outcome")

ALREADY_PENDING = (
    "Evaluation already pending; read it first with poll() or wait(), or choose what a busy evaluator does: "
    "busy_policy='queue' appends, 'skip' returns False, 'latest' replaces the one that waits"
)
NOT_READ = "{unread} outcomes are unread and no more are kept without on_result; read them with poll() or wait() first"
AT_WORK = "the evaluator has work that is pending, queued, or unread; wait for it, then read it with poll() or wait()"
IS_CLOSED = "the evaluator was shut down, or is that of the process this one was forked from; build another one"


@dataclass(frozen=True)
class Accepted(Generic[Request]):
    """A request that has its place.

    Attributes:
        number: its asker's name for it.
        sync: whether a caller is blocked until its outcome is there.
        request: what is to be evaluated.
        step: as given, else counted.
        policy_version: how many sets of weights were accepted so far, its own included.
    """

    number: int
    sync: bool
    request: Request
    step: int
    policy_version: int


@dataclass(frozen=True)
class Asked:
    """Somebody wants an evaluation; nothing has been copied for it yet.

    Attributes:
        number: no other request has it. The asker chooses it, so that it can withdraw whatever interrupts it.
        sync: whether the asker will be blocked until the outcome is there.
    """

    number: int
    sync: bool = False


@dataclass(frozen=True)
class Supplied(Generic[Request]):
    """An admitted request is complete, its weights copied.

    Attributes:
        number: as asked.
        request: what is to be evaluated.
        step: the training step; `None`: the next of the inbox's count.
        weighted: whether it brings a set of weights.
    """

    number: int
    request: Request
    step: int | None = None
    weighted: bool = True


@dataclass(frozen=True)
class Finished(Generic[Outcome]):
    """The workers are done with a request, or have stopped: then the outcome counts for nothing."""

    number: int
    outcome: Outcome


@dataclass(frozen=True)
class Published(Generic[Outcome]):
    """Everybody who is to be shown an outcome before it can be read has been.

    Attributes:
        number: of the request.
        outcome: what is to be read.
        failed: whether it is an error; nobody was shown it then.
    """

    number: int
    outcome: Outcome
    failed: bool = False


@dataclass(frozen=True)
class Read:
    """Somebody wants an outcome: of the sync request of this number, or `None`: the oldest of the async ones."""

    number: int | None = None


@dataclass(frozen=True)
class Cancelled:
    """Nobody wants the outcome of this request any more, or `None`: of any async one that waits or runs.

    A request that was only admitted is withdrawn: it was never accepted.
    """

    number: int | None = None


@dataclass(frozen=True)
class Restored:
    """The counts of an earlier inbox are to go on here."""

    step_counter: int
    policy_version: int


@dataclass(frozen=True)
class Closed:
    """Nothing is to be evaluated any more; what is unread can still be read."""


Event: TypeAlias = (
    Asked | Supplied[Request] | Finished[Outcome] | Published[Outcome] | Read | Cancelled | Restored | Closed
)


@dataclass(frozen=True)
class Admit:
    """It will be accepted: copy its weights, then say `Supplied` or `Cancelled`, whatever happens."""

    number: int


@dataclass(frozen=True)
class Accept(Generic[Request]):
    """It has its place, its step and its version."""

    accepted: Accepted[Request]


@dataclass(frozen=True)
class Refuse:
    """Raise this; nothing has changed.

    Attributes:
        why: the cause.
        unread: how many outcomes are.
    """

    why: Literal["closed", "pending", "unread", "at work"]
    unread: int = 0

    @property
    def error(self) -> SwathError:
        """A new exception that says what to do next."""
        if self.why == "closed":
            return ClosedError(IS_CLOSED)
        texts = {"pending": ALREADY_PENDING, "unread": NOT_READ.format(unread=self.unread), "at work": AT_WORK}
        return SwathError(texts[self.why])


@dataclass(frozen=True)
class Skip:
    """Busy: say so, and go on."""


@dataclass(frozen=True)
class Supersede:
    """This waiting request was replaced by a newer one; it has no outcome."""

    number: int


@dataclass(frozen=True)
class Drop:
    """This waiting request was cancelled; it has no outcome."""

    number: int


@dataclass(frozen=True)
class Run(Generic[Request]):
    """The workers are free for it. They work on one request at a time, until it has `Finished`."""

    accepted: Accepted[Request]


@dataclass(frozen=True)
class Stop:
    """This running request was cancelled: end it at its next step, then say `Finished`."""

    number: int


@dataclass(frozen=True)
class Publish(Generic[Request, Outcome]):
    """Show the outcome to whom it concerns, then say `Published`. One at a time, in order."""

    accepted: Accepted[Request]
    outcome: Outcome


@dataclass(frozen=True)
class Deliver(Generic[Outcome]):
    """The outcome that was asked for; it is the reader's."""

    outcome: Outcome


@dataclass(frozen=True)
class Wake:
    """All blocked callers are to look again."""


Instruction: TypeAlias = (
    Admit
    | Accept[Request]
    | Refuse
    | Skip
    | Supersede
    | Drop
    | Run[Request]
    | Stop
    | Publish[Request, Outcome]
    | Deliver[Outcome]
    | Wake
)
