"""Resources of this process: child processes, threads, descriptors and blocks of shared memory."""

import gc
import os
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path


def descriptors():
    """Return open descriptors by kind, since numbers of sockets and pipes change."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # of the directory itself
            found.append(str(path.readlink()).partition(":")[0])
    return sorted(found)


def left():
    """Return child processes, threads, descriptors, blocks of shared memory."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    return set(children()), threading.active_count(), descriptors(), maps.count("memfd:")


def require_no_more_than(before):
    """Assert that no resources were added to those of `left`; earlier ones may have ended."""
    processes, threads, fds, blocks = left()
    assert processes <= before[0]
    assert threads <= before[1]
    assert Counter(fds) <= Counter(before[2])
    assert blocks <= before[3]


def children():
    """Return the ids of all descendants, except ended ones."""
    found, above = [], [os.getpid()]
    while above:
        below = [pid for task in _tasks(above.pop()) for pid in _below(task)]
        found += below
        above += below
    return found


def _tasks(pid):
    with suppress(FileNotFoundError):  # the process has ended
        return list(Path(f"/proc/{pid}/task").iterdir())
    return []


def _below(task):
    with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended; what it began is another's by now
        return [int(pid) for pid in (task / "children").read_text().split()]
    return []
