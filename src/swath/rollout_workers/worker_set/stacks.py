"""Where a worker was when it hung: its stacks, written by itself before it is killed, whatever it is doing."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

EARLIER = 0.9
"""Of the time after which a call is late: stacks are written a little before, for then the worker is killed."""


class Stacks:
    """Writes the stacks of all threads when a call takes too long.

    Args:
        patience: seconds after which a call is late; None: never.
        path: of the file, made when it is first needed; None: the standard error of the process.
    """

    def __init__(self, patience: float | None, path: Path | None) -> None:
        self._after = None if patience is None else patience * EARLIER
        self._path = path
        self._file: IO[Any] | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch over a call."""
        if self._after is None or (file := self._opened()) is None:
            yield
            return
        faulthandler.dump_traceback_later(self._after, file=file)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()

    def close(self) -> None:
        """Close the file; nothing is left of it if nothing was written."""
        if self._file is not None and self._path is not None:
            self._file.close()
            self._file = None
            if not self._path.stat().st_size:
                self._path.unlink()

    def _opened(self) -> IO[Any] | None:
        """Where to write; None where a process has no standard error."""
        if self._file is None:
            self._file = sys.__stderr__ if self._path is None else self._new(self._path)
        return self._file

    @staticmethod
    def _new(path: Path) -> IO[Any]:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a")
