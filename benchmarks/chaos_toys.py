"""What `chaos.py` is made of: envs that write a diary, one that hangs when it is told to, and somebody who kills.

envs ─▶ diary: who begins to live when, in which process ─▶ Killer: SIGKILL for one of them, again and again
                                                         └▶ how long until the next life makes its first frame
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from swath.testing import Counting, CountingEnv, Fault, Script

COUNTING = Counting(script=Script(lengths=(200, 500, 100, 300)))
ENVS = 4
COST_S = 50e-6
"""CPU time that a step takes beside the counting, which is another 10 µs."""
LOOK_EVERY = 50


class Line(NamedTuple):
    """One life has made its first frame: which worker's, in which process, when, and what CPU time that took."""

    worker: int
    pid: int
    at: float
    cpu: float = 0.0


@dataclass(frozen=True)
class Diary:
    """What workers write down, from whatever process of this machine; its clock is the same in all of them.

    Attributes:
        home: an empty directory.
    """

    home: Path

    def write(self, worker: int) -> None:
        """This process's first frame."""
        with (self.home / "diary").open("a") as file:
            file.write(f"{worker} {os.getpid()} {time.monotonic()} {time.process_time()}\n")

    def lines(self) -> list[Line]:
        """All that were written, in their order."""
        with suppress(FileNotFoundError):
            rows = (row.split() for row in (self.home / "diary").read_text().splitlines())
            return [Line(int(worker), int(pid), float(at), float(cpu)) for worker, pid, at, cpu in rows]
        return []

    def ask_to_hang(self, worker: int) -> None:
        """The worker will hang once, soon."""
        (self.home / f"hang-{worker}").touch()

    def is_to_hang(self, worker: int) -> bool:
        """Whether it was asked to; true once."""
        with suppress(FileNotFoundError):
            (self.home / f"hang-{worker}").unlink()
            return True
        return False


class Toiling(CountingEnv):
    """A counting env that takes its time.

    Args:
        worker: whose env it is.
        number: which of its envs, from 0; the first writes the diary, and hangs when it is told to.
        diary: where.
        faults: what goes wrong in it.
        counting: what it is like.
    """

    def __init__(
        self, worker: int, number: int, diary: Diary, faults: tuple[Fault, ...] = (), counting: Counting = COUNTING
    ) -> None:
        super().__init__(worker * ENVS + number, counting, faults)
        self._worker, self._diary, self._first = worker, diary, number == 0
        self._made = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count one step, and work for it."""
        until = time.thread_time() + COST_S
        answer = super().step(action)
        while time.thread_time() < until:
            pass
        if self._first:
            self._note()
        return answer

    def _note(self) -> None:
        self._made += 1
        if self._made == 1:
            self._diary.write(self._worker)
        if self._made % LOOK_EVERY == 0 and self._diary.is_to_hang(self._worker):
            threading.Event().wait()


@dataclass
class Source:
    """Builds the envs of one worker; every life begins anew with the first.

    Attributes:
        worker: whose.
        diary: where they write.
        faults: what goes wrong in its last env.
    """

    worker: int
    diary: Diary
    faults: tuple[Fault, ...] = ()
    made: int = 0

    def __call__(self) -> Toiling:
        """The next env."""
        number, self.made = self.made, self.made + 1
        return Toiling(self.worker, number, self.diary, self.faults if number == ENVS - 1 else ())


class Killer:
    """Kills a worker's process at random, again and again, from a thread of its own.

    Args:
        diary: says who lives in which process.
        seed: of the choice.

    Attributes:
        killed: who, and when.
    """

    def __init__(self, diary: Diary, seed: int) -> None:
        self.killed: list[Line] = []
        self._diary, self._random = diary, random.Random(seed)

    @property
    def recoveries(self) -> list[tuple[float, float]]:
        """Seconds from each kill to the first frame of that worker's next life, some of which may be missing yet.

        Beside them the CPU seconds that this life had taken by then.
        """
        found = []
        for one in self.killed:
            later = [line for line in self._diary.lines() if line.worker == one.worker and line.at > one.at]
            found += [(line.at - one.at, line.cpu) for line in later[:1]]
        return found

    @contextmanager
    def at_work(self, first: float, every: float, spare: int | None = None) -> Iterator[None]:
        """Kill after `first` seconds, and again after `every` more; never the worker `spare`."""
        over = threading.Event()

        def work() -> None:
            due = time.monotonic() + first
            while not over.wait(min(due - time.monotonic(), threading.TIMEOUT_MAX)):
                self._kill_one(spare)
                due += every

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _kill_one(self, spare: int | None) -> None:
        """Somebody who is known to live; nobody if all are coming back."""
        last = {line.worker: line.pid for line in self._diary.lines() if line.worker != spare}
        dead = {one.pid for one in self.killed}
        living = [(worker, pid) for worker, pid in last.items() if pid not in dead]
        self._random.shuffle(living)
        for worker, pid in living:
            at = time.monotonic()
            with suppress(ProcessLookupError):  # it hung, and was killed by its collector
                os.kill(pid, signal.SIGKILL)
                self.killed.append(Line(worker, pid, at))
                return
