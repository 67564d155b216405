"""What a worker in a process of its own replies, whatever carries it: sockets and shared memory, or Ray.

Outcome ─▶ reply_to ─▶ Reply ─ carried ─▶ the caller's Outcome
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from swath.workers.hosting import attempted
from swath.workers.outcome import Error, Outcome, frozen
from swath.workers.packing import Parcel


class Reply(NamedTuple):
    """What became of a call; its parts are as they travel.

    Attributes:
        value: what it returned, the head of a parcel, or an exception as `frozen`.
        raised: whether it is an exception.
        parcel: whether there is a body.
        body: of a parcel; `None` if it goes another way.
    """

    value: Any
    raised: bool = False
    parcel: bool = False
    body: Any = None


def reply_to(outcome: Outcome, carry: Callable[[Any], Any]) -> Reply:
    """What to reply; what cannot travel becomes an exception.

    Args:
        outcome: of the call.
        carry: makes a value ready to travel.
    """
    made = outcome if isinstance(outcome, Error) else attempted(_carried, outcome.value, carry)
    if isinstance(made, Error):
        return Reply(carry(frozen(made.exception)), raised=True)
    reply: Reply = made.value
    return reply


def begin_process(threads: int) -> None:
    """Threads as asked for, random states that no other worker has: new processes begin with the same."""
    torch.set_num_threads(threads)
    torch.seed()
    random.seed()
    np.random.seed()  # noqa: NPY002  users draw from it


def _carried(value: Any, carry: Callable[[Any], Any]) -> Reply:
    if not isinstance(value, Parcel):
        return Reply(carry(value))
    body = carry(value.body)
    return Reply(carry(value.head), parcel=True, body=body)
