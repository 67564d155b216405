"""The process that built an object."""

from __future__ import annotations

import os

from swath.errors import Closed


class Owner:
    """The process that built an object, of which forked processes have copies.

    Attributes:
        pid: id of the process.
    """

    __slots__ = ("pid",)

    def __init__(self) -> None:
        self.pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Return whether this is the owner, and no fork of it."""
        return self.pid == os.getpid()

    def require_here(self, objects: str) -> None:
        """Raise `Closed` in a fork.

        Args:
            objects: their name in the message, in the plural.
        """
        if not self.is_here:
            raise Closed(f"{objects} belong to process {self.pid}, of which this one is a fork; make others here")
