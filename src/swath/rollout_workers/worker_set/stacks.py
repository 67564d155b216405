"""Where a worker was when it hung: its stacks, written by itself a little before it is killed."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

EARLIER = 0.9
"""Of the time after which a call is late."""


class Stacks:
    """Writes the stacks of all threads when a call takes too long.

    Args:
        patience: seconds after which a call is late; None: nothing is written.
        path: of the file; None: the standard error of the process.
    """

    def __init__(self, patience: float | None, path: Path | None) -> None:
        self._after = None if patience is None else patience * EARLIER
        self._path = path
        self._file: IO[Any] | None = sys.__stderr__
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch over a call."""
        if self._after is None or self._file is None:
            yield
            return
        faulthandler.dump_traceback_later(self._after, file=self._file)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()

    def close(self) -> None:
        """Close the file, and remove it if nothing was written."""
        if self._path is not None and self._file is not None:
            self._file.close()
            if not self._path.stat().st_size:
                self._path.unlink()
