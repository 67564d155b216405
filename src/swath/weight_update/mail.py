"""What a scheme that has no collector puts its weights into: a channel of its own, and how others read it.

sender: OwnChannel.put(snapshots) ──▶ register: the newest per reader
             └─ address ──(pickled)──▶ Reader.newest(worker, after) ─▶ Letter, or None if there is nothing newer
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, TypeAlias

from swath.weights.snapshot import Snapshot

EVERYONE = -1
"""Stands for all readers, also those that have no index."""

Post: TypeAlias = Mapping[int, Snapshot]
"""Snapshots by index of the reader; under `EVERYONE` that of all others, too."""

PATIENCE_S = 10.0
"""How long a channel may take to answer, beyond the time that a reader waits for news."""


class Letter(NamedTuple):
    """The newest weights that a reader has not seen.

    Attributes:
        serial: grows with each publication.
        snapshot: good until the reader asks again; to be read only.
    """

    serial: int
    snapshot: Snapshot


class Reader(Protocol):
    """Reads a channel; one thread at a time."""

    def newest(self, worker: int, after: int, timeout: float) -> Letter | None:
        """What is meant for a reader, if it is newer than what it has seen.

        Args:
            worker: its index, or `EVERYONE`.
            after: the serial number of what it has seen; 0 for nothing.
            timeout: how long to wait for news, in seconds.

        Raises:
            RuntimeError: the channel cannot be reached; the message says why.
        """

    def close(self) -> None:
        """Let go of the channel. Twice is fine."""


class Address(Protocol):
    """Where a channel is; small, travels by pickle."""

    def reader(self) -> Reader:
        """Reads it from here."""


class OwnChannel(Protocol):
    """Where the weights are; lives until it is closed or its sender ends. Any thread may put."""

    @property
    def address(self) -> Address:
        """Where it is."""

    def put(self, post: Post) -> None:
        """Make these the newest; blocks while they are copied."""

    def close(self) -> None:
        """Nothing of it is left. Twice is fine."""
