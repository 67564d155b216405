"""A worker that does what it is told, for tests of backends; and a gate that holds it up without a clock."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from swath.workers.packing import Parcel

_ARRIVED, _OPEN = "arrived", "open"


class Odd(Exception):  # noqa: N818  what it is, not what it means
    """Cannot be rebuilt from its arguments, as some users' exceptions cannot."""

    def __init__(self, first: str, *, second: str) -> None:
        super().__init__(f"{first} {second}")


@dataclass(frozen=True)
class Gate:
    """Holds workers of this machine up until it is opened; works across processes.

    Attributes:
        path: an empty directory.
    """

    path: Path

    @classmethod
    def at(cls, path: Path) -> Gate:
        """A closed gate."""
        path.mkdir(exist_ok=True)
        for name in (_ARRIVED, _OPEN):
            os.mkfifo(path / name)
        return cls(path)

    def go_through(self) -> None:
        """Say that you are here, and wait until it is open; in the worker."""
        with (self.path / _ARRIVED).open("wb"):
            pass
        with (self.path / _OPEN).open("rb"):
            pass

    def await_arrival(self) -> None:
        """Wait until somebody is at the gate; in the test."""
        with (self.path / _ARRIVED).open("rb"):
            pass

    def open(self) -> None:
        """Let through who is there, and who will come."""
        passage = self.path / "passage"
        for name in (_ARRIVED, _OPEN):
            both_ends = os.open(self.path / name, os.O_RDWR | os.O_NONBLOCK)  # who is there goes on
            passage.touch()
            passage.replace(self.path / name)  # who comes later finds a plain file
            os.close(both_ends)


class ToyWorker:
    """Its methods are what tests need; each says what it does in one word.

    Args:
        start: where it begins to count.
        gate: what it has to go through before it is built.
        error: raised when it is built.
    """

    def __init__(self, start: int = 0, *, gate: Gate | None = None, error: Exception | None = None) -> None:
        if gate is not None:
            gate.go_through()
        if error is not None:
            raise error
        self.count = start
        self.kept: Any = None

    def add(self, number: int) -> int:
        """Count on."""
        self.count += number
        return self.count

    def echo(self, value: Any) -> Any:
        """Give it back."""
        return value

    def keep(self, value: Any) -> Any:
        """Keep it, and give it back."""
        self.kept = value
        return value

    def kept_sum(self) -> float:
        """Of what was kept."""
        return float(self.kept.sum())

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call it, here."""
        return function(*args)

    def fail(self, error: BaseException) -> None:
        """Raise it."""
        raise error

    def fail_oddly(self) -> None:
        """Raise what cannot be rebuilt."""
        raise Odd("rather", second="odd")

    def lock(self) -> Any:
        """What cannot travel."""
        return threading.Lock()

    def parcel(self, number: int, size: int) -> Parcel:
        """A head that says the number, a body of arrays that are full of it."""
        body = {"array": np.full(size, number, dtype=np.uint8), "tensor": torch.full((size, 1), number)}
        return Parcel({"number": number}, body)

    def read(self, shared: Any) -> tuple[float, bool]:
        """The sum of a shared array, and whether it can be written."""
        array = shared.open()["array"]
        return float(array.sum()), bool(array.flags.writeable)

    def wait_at(self, gate: Gate) -> None:
        """Go through it."""
        gate.go_through()

    def draw(self) -> tuple[float, float, float]:
        """From the process's random states."""
        return random.random(), float(np.random.random()), float(torch.rand(()))  # noqa: NPY002, S311

    def threads(self) -> int:
        """Of torch."""
        return torch.get_num_threads()

    def pid(self) -> int:
        """The process it lives in."""
        return os.getpid()

    def exit(self, code: int) -> None:
        """End the process at once."""
        os._exit(code)

    def until(self, watched: Any, index: int, number: int) -> list[int]:
        """Wait for a number among those that the caller changes; all of them then."""
        values = watched.open()
        while values[index] < number:
            os.sched_yield()
        numbers: list[int] = values.tolist()
        return numbers
