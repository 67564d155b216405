"""Replay buffers whose clients write from other processes, for tests: every write is one entry of a file."""

from __future__ import annotations

import os
import pickle
import signal
import struct
from dataclasses import dataclass
from pathlib import Path

import torch
from tensordict import TensorDict

from toys import Gate

HEADER = struct.Struct("<I")


@dataclass
class Entry:
    """One write: by which client, in which process, and what."""

    client: int
    pid: int
    td: TensorDict


@dataclass
class Mishap:
    """What goes wrong, once: at the first write that a client makes after so many entries are there.

    Attributes:
        kind: "raise" before it is written, "die" before or "die after" it, or "wait" at a gate before it.
        entries: how many entries there are then.
        client: whose write it is; any by default.
    """

    kind: str
    entries: int
    client: int | None = None
    gate: Gate | None = None


class FileBuffer:
    """A buffer in a file; only its clients write."""

    def __init__(self, folder: Path, mishap: Mishap | None = None):
        folder.mkdir(exist_ok=True)
        self.path, self.mishap, self.made = folder / "entries", mishap, 0
        self.path.touch()

    def client(self):
        self.made += 1
        return FileClient(self.path, self.made - 1, self.mishap)

    def extend(self, td):
        raise AssertionError("this process was to write nothing")

    @property
    def entries(self):
        return entries(self.path)

    @property
    def written(self):
        return [entry.td for entry in self.entries]

    @property
    def frames(self):
        return sum(td.numel() for td in self.written)


class FileClient:
    """Appends; whole entries, whoever else writes."""

    def __init__(self, path, number, mishap=None):
        self.path, self.number, self.mishap = path, number, mishap

    def extend(self, td):
        kind = self._due()
        if kind == "raise":
            raise OSError("disk full")
        if kind == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "wait":
            self.mishap.gate.go_through()
        body = pickle.dumps(Entry(self.number, os.getpid(), td.clone()))
        with self.path.open("ab", buffering=0) as file:
            file.write(HEADER.pack(len(body)) + body)
        if kind == "die after":
            os.kill(os.getpid(), signal.SIGKILL)

    def _due(self):
        mishap = self.mishap
        if mishap is None or mishap.client not in (None, self.number) or len(entries(self.path)) < mishap.entries:
            return None
        try:
            self.path.with_name("happened").touch(exist_ok=False)  # by one client, also where two write at once
        except FileExistsError:
            return None
        return mishap.kind


class Itself:
    """A buffer in memory that is its own client, as TorchRL's plain buffers are."""

    def __init__(self):
        self.written = []

    def client(self):
        return self

    def extend(self, td):
        self.written.append(td)


def entries(path):
    """Those that are complete: another process may be in the midst of writing one."""
    data, at, found = path.read_bytes(), 0, []
    while at + HEADER.size <= len(data):
        (size,) = HEADER.unpack_from(data, at)
        body = data[at + HEADER.size : at + HEADER.size + size]
        if len(body) < size:
            break
        found.append(pickle.loads(body))
        at += HEADER.size + size
    return found


def same_writes(mine, theirs):
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        assert one.names == other.names
        assert_equal(one, other)


def assert_equal(one, other):
    keys = set(one.keys(include_nested=True, leaves_only=True))
    assert keys == set(other.keys(include_nested=True, leaves_only=True))
    assert one.batch_size == other.batch_size
    for key in keys:
        assert one[key].dtype == other[key].dtype, key
        assert torch.equal(one[key], other[key]), key
