"""Replay buffers whose clients write from other processes, for tests: every write is one file."""

from __future__ import annotations

import os
import pickle
import signal
import time
from pathlib import Path
from typing import NamedTuple

from tensordict import TensorDict


class Entry(NamedTuple):
    """One write: by which client, in which process, and what."""

    client: int
    pid: int
    td: TensorDict


class Mishap(NamedTuple):
    """Fails once, at the first write of a client (any by default) when there is a number of entries.

    `kind` is "raise" before it is written, "die" before or "die after" it.
    """

    kind: str
    entries: int
    client: int | None = None


class FileBuffer:
    """A buffer in a folder; only its clients write."""

    def __init__(self, folder: Path, mishap: Mishap | None = None):
        folder.mkdir(exist_ok=True)
        self.folder, self.mishap, self.made = folder, mishap, 0

    def client(self):
        self.made += 1
        return FileClient(self.folder, self.made - 1, self.mishap)

    def extend(self, td):
        raise AssertionError("this process was to write nothing")

    @property
    def entries(self):
        return [pickle.loads(path.read_bytes()) for path in sorted(self.folder.glob("*.entry"))]

    @property
    def written(self):
        return [entry.td for entry in self.entries]

    @property
    def frames(self):
        return sum(td.numel() for td in self.written)


class FileClient:
    """Writes whole entries, also while other clients write; their names are in order of time."""

    def __init__(self, folder, number, mishap=None):
        self.folder, self.number, self.mishap = folder, number, mishap

    def extend(self, td):
        kind = self._due()
        if kind == "raise":
            raise OSError("disk full")
        if kind == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        path = self.folder / f"{time.monotonic_ns():020}-{self.number}"
        path.write_bytes(pickle.dumps(Entry(self.number, os.getpid(), td.clone())))
        path.rename(path.with_suffix(".entry"))
        if kind == "die after":
            os.kill(os.getpid(), signal.SIGKILL)

    def _due(self):
        mishap = self.mishap
        if mishap is None or mishap.client not in (None, self.number):
            return None
        if len([*self.folder.glob("*.entry")]) < mishap.entries:
            return None
        try:
            (self.folder / "happened").touch(exist_ok=False)  # by one client, also where two write at once
        except FileExistsError:
            return None
        return mishap.kind
