"""Whether memory grows for as long as something goes on: measured in equal windows.

warm-up │ window │ window │ window │ window     a leak grows in each of them, a cache fills and stays
"""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

WINDOWS = 4
TRACED_NOISE = 16 * 2**10
"""Bytes that Python's own memory may grow by in a window without a reason to worry."""
RESIDENT_NOISE = 512 * 2**10
"""The same for the process, whose memory is handed out in larger pieces."""
STATM = Path("/proc/self/statm")


@dataclass(frozen=True)
class Growth:
    """What several equal windows added to memory, in bytes.

    Attributes:
        traced: what Python has allocated, per window.
        resident: what the process takes, per window; empty where the system does not tell.
        where: the line that allocated most of it, as `file:line`; empty if not known.
    """

    traced: tuple[int, ...]
    resident: tuple[int, ...] = ()
    where: str = ""

    @property
    def per_window(self) -> int:
        """How much a window adds, if each adds something; 0 if one does not."""
        return max(steady(self.traced, TRACED_NOISE), steady(self.resident, RESIDENT_NOISE))


def steady(windows: Sequence[int], noise: int) -> int:
    """The median of what windows add, if every one adds more than noise; else 0."""
    if not windows or min(windows) <= noise:
        return 0
    return sorted(windows)[len(windows) // 2]


def measure(window: Callable[[], None]) -> Growth:
    """Run a window again and again, once to warm up; tracing makes Python's allocations several times as slow."""
    with _tracing():
        window()
        marks = [_mark()]
        for _ in range(WINDOWS):
            window()
            marks.append(_mark())
        traced, resident = ([late - early for early, late in pairwise(column)] for column in zip(*marks, strict=True))
        where = _where(window) if steady(traced, TRACED_NOISE) else ""
    return Growth(tuple(traced), tuple(resident) if STATM.exists() else (), where)


@contextmanager
def _tracing() -> Iterator[None]:
    """Trace what is allocated from here on; what was there before is no garbage of ours."""
    begun = not tracemalloc.is_tracing()
    if begun:
        tracemalloc.start()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if begun:
            tracemalloc.stop()


def _mark() -> tuple[int, int]:
    gc.collect()
    return tracemalloc.get_traced_memory()[0], _resident()


def _resident() -> int:
    """Bytes of this process that are in memory; 0 where the system does not tell."""
    if not STATM.exists():
        return 0
    return int(STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _snapshot() -> tracemalloc.Snapshot:
    mine = (tracemalloc.Filter(inclusive=False, filename_pattern=name) for name in (__file__, tracemalloc.__file__))
    return tracemalloc.take_snapshot().filter_traces(list(mine))


def _where(window: Callable[[], None]) -> str:
    """The line whose memory grows most in one more window."""
    before = _snapshot()
    window()
    grown = max(_snapshot().compare_to(before, "lineno"), key=lambda change: change.size_diff, default=None)
    if grown is None or grown.size_diff <= 0:
        return ""
    file, home = Path(grown.traceback[0].filename), Path.cwd()
    return f"{file.relative_to(home) if file.is_relative_to(home) else file}:{grown.traceback[0].lineno}"
