"""What a worker in a process of its own replies, whatever carries it: sockets and shared memory, or Ray.

Outcome ─▶ reply_to ─▶ (raised, value), body: carried ─▶ outcome_of ─▶ the caller's Outcome
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from swath.workers.hosting import attempted
from swath.workers.outcome import Error, Outcome, Value, frozen, thawed
from swath.workers.packing import Parcel
from swath.workers.tickets import Received


def reply_to(outcome: Outcome, carry: Callable[[Any], Any]) -> tuple[Any, Any]:
    """What to reply; what cannot travel becomes an exception.

    Args:
        outcome: of the call.
        carry: makes a value ready to travel.

    Returns:
        Whether it raised and what, or what it returned, carried; the body of a parcel, carried by itself, or `None`.
    """
    made = outcome if isinstance(outcome, Error) else attempted(_carried, outcome.value, carry)
    return (carry((True, frozen(made.exception))), None) if isinstance(made, Error) else made.value


def outcome_of(head: Callable[[], Any], body: Callable[[], Any] | None) -> Outcome:
    """What became of the call.

    Args:
        head: loads the first part of the reply.
        body: loads the second, if there is one.
    """
    try:
        raised, value = head()
        if raised:
            return Error(thawed(value))
    except BaseException as error:  # noqa: BLE001  whatever users' classes do when they are rebuilt
        return Error(error)
    return Value(value if body is None else Received(value, body))


def begin_process(threads: int) -> None:
    """Threads as asked for, random states that no other worker has: new processes begin with the same."""
    torch.set_num_threads(threads)
    torch.seed()
    random.seed()
    np.random.seed()  # noqa: NPY002  users draw from it


def _carried(value: Any, carry: Callable[[Any], Any]) -> tuple[Any, Any]:
    if not isinstance(value, Parcel):
        return carry((False, value)), None
    body = carry(value.body)
    return carry((False, value.head)), body
