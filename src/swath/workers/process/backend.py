"""Workers in processes of this machine.

    driver ─ nursery's wire ─▶ nursery ─ forks ─▶ worker
      │                                            │
      ├── call: any thread ──── worker's wire ────▶│ answers one after another
      └── one reader thread ◀──────────────────────┘ settles tickets, notices deaths

A worker is over when the nursery has reaped it: then, not before, its tickets are settled. Large arrays travel in
nameless shared memory (`blocks.py`). A fork of the driver may make backends of its own; with those of its parent it can
do nothing, and they end with the parent.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from swath.workers.base import Handle, Job
from swath.workers.process.handle import ProcessHandle
from swath.workers.process.processes import Processes
from swath.workers.process.sharing import ProcessShared, ProcessWatched
from swath.workers.tickets import Ticket

PRELOAD = ("torch", "tensordict", "gymnasium", "swath.workers.process.desk")


class ProcessBackend:
    """Workers in processes of their own, forked by a nursery that has imported what they need.

    Args:
        preload: modules that the nursery imports, so that workers need not; none that starts threads when imported.
            With none at all it is a nursery apart, whose workers begin before torch and numpy are imported.
    """

    def __init__(self, preload: Sequence[str] = PRELOAD) -> None:
        self._processes = Processes(preload)
        weakref.finalize(self, self._processes.close_soon).atexit = False

    def spawn(self, job: Job) -> Handle:
        """Begin a worker's life and return at once.

        Raises:
            TypeError: `before` or `build` cannot be pickled.
            Closed: the backend is closed, or belongs to the process that this one was forked from.
        """
        return self._processes.spawn(job)

    def call(self, handle: Handle, method: str, *args: Any) -> Ticket:
        """Send a call and return at once.

        Raises:
            TypeError: an argument cannot be pickled.
        """
        assert isinstance(handle, ProcessHandle)
        return self._processes.call(handle, method, args)

    def wait(
        self,
        tickets: Sequence[Ticket],
        timeout: float | None = None,
        interrupted: Callable[[], bool] | None = None,
    ) -> list[Ticket]:
        """The tickets that are done; see `Board.wait`."""
        return self._processes.board.wait(tickets, timeout, interrupted)

    def watched(self, size: int) -> ProcessWatched:
        """See `Backend.watched`."""
        return self._processes.watched(size)

    def share(self, value: Any) -> ProcessShared:
        """Write the value into a block that all workers can read."""
        return self._processes.share(value)

    def wake(self) -> None:
        """Let those who wait look whether they are interrupted."""
        self._processes.board.wake()

    def kill(self, handle: Handle) -> None:
        """Have the worker killed; its tickets are settled when that is done."""
        assert isinstance(handle, ProcessHandle)
        self._processes.kill(handle)

    def room(self, handle: Handle) -> tuple[str, str]:  # noqa: ARG002  all are alike
        """A process, on however many CPUs."""
        return "a process", f"{os.cpu_count()} CPUs of this machine"

    def close(self) -> None:
        """Kill all that is left. Happens by itself when the backend is collected, or the interpreter ends."""
        self._processes.close()
