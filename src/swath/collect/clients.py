"""Clients of a replay buffer, for workers that write for themselves."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from swath.options import Trajectories
from swath.words import kind_of


@dataclass(frozen=True)
class PenRequest:
    """How a worker writes.

    Attributes:
        client: its own, of the replay buffer.
        trajectories: how batches are made of episodes.
        keep_ids: whether trajectory ids are written.
        device: where batches live; `None` leaves them without a device.
        cut: leave out the steps of a fragment that were not made.
    """

    client: Any
    trajectories: Trajectories
    keep_ids: bool = True
    device: torch.device | None = None
    cut: bool = False


class Clients:
    """Hands out clients of a replay buffer, each once.

    Args:
        buffer: has `clients(n)` or `client()`.
        first: those that it has made.
    """

    def __init__(self, buffer: Any, first: list[Any]) -> None:
        self._buffer = buffer
        self._first = deque(first)

    def take(self) -> Any:
        """A client that nobody has.

        Raises:
            TypeError: it cannot be extended.
        """
        client = self._first.popleft() if self._first else made_by(self._buffer, 1)[0]
        if not callable(getattr(client, "extend", None)):
            raise TypeError(f"a client of the replay buffer is {kind_of(client)} without extend()")
        return client


def clients_of(buffer: Any, n: int) -> Clients | None:
    """Clients for `n` workers, and for their next lives; `None` if there are none.

    A buffer that is its own client can be written by its own process only: elsewhere there would be copies of it.

    Raises:
        ValueError: `clients(n)` gives another number.
    """
    if not any(callable(getattr(buffer, name, None)) for name in ("clients", "client")):
        return None
    first = made_by(buffer, n)
    return None if any(client is buffer for client in first) else Clients(buffer, first)


def made_by(buffer: Any, n: int) -> list[Any]:
    """So many clients.

    Raises:
        ValueError: `clients(n)` gives another number.
    """
    if not callable(getattr(buffer, "clients", None)):
        return [buffer.client() for _ in range(n)]
    made = list(buffer.clients(n))
    if len(made) != n:
        raise ValueError(f"clients({n}) of the replay buffer gave {len(made)} clients, not {n}")
    return made
