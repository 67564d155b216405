"""The process that an object belongs to."""

from __future__ import annotations

import os

from swath.errors import Closed


class Owner:
    """Remember the process that builds an object: its forks have copies of the object, and share what that writes to.

    Attributes:
        pid: of that process.
    """

    __slots__ = ("pid",)

    def __init__(self) -> None:
        self.pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Return whether this is that process, and no fork of it."""
        return self.pid == os.getpid()

    def require_here(self, objects: str) -> None:
        """Raise `Closed` in a fork.

        Args:
            objects: their name in the message, in the plural.
        """
        if not self.is_here:
            raise Closed(f"{objects} belong to process {self.pid}, of which this one is a fork; make others here")
