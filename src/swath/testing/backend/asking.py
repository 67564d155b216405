"""What all tests of a backend do: spawn toy workers, ask, wait, count what is left."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swath.testing.toy_worker import ToyWorker
from swath.workers.base import Backend, Handle, Job
from swath.workers.outcome import Error
from swath.workers.tickets import Name, Ticket

DEADLINE_S = 60.0
LARGE = 3_000_000
_KEPT: pytest.StashKey[Backend] = pytest.StashKey()


class Place:
    """What tests must know of a place for workers.

    Attributes:
        concurrent: whether workers go on while nobody waits.
        own_process: whether each worker has a process of its own on this machine.
        watches: whether workers see memory of this process.
        sees_idle_deaths: whether `Handle.ended` is settled without a call.
        tells_exit_codes: whether `WorkerLost.exit` is a process's exit code, not words.
        lingers_s: for how many seconds a process, and what is open to it, may stay when its tickets are settled.
    """

    concurrent = True
    own_process = True
    watches = True
    sees_idle_deaths = True
    tells_exit_codes = True
    lingers_s = 0.0


class Visit:
    """A backend as one test sees it.

    Args:
        backend: others use it too, one after another.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._workers: list[Handle] = []
        self.call, self.wait, self.share, self.watched = backend.call, backend.wait, backend.share, backend.watched
        self.wake, self.kill, self.room, self.close = backend.wake, backend.kill, backend.room, backend.close

    def spawn(self, job: Job) -> Handle:
        """Spawn, and remember to kill."""
        self._workers.append(self._backend.spawn(job))
        return self._workers[-1]

    def over(self) -> None:
        """Kill what was spawned."""
        for worker in self._workers:
            self._backend.kill(worker)
        for worker in self._workers:
            result_of_end(self._backend, worker)


@contextmanager
def visiting(make_backend: Callable[[], Backend], test: pytest.Item) -> Iterator[Visit]:
    """A backend that is made once for all tests of a class, since that may be slow."""
    node = test.getparent(pytest.Class)
    assert node is not None, "contracts are classes"
    if _KEPT not in node.stash:
        node.stash[_KEPT] = made = make_backend()
        node.addfinalizer(made.close)
    visit = Visit(node.stash[_KEPT])
    yield visit
    visit.over()


def job(
    build: Callable[[], Any] = ToyWorker,
    *,
    index: int = 0,
    life: int = 0,
    before: Callable[[], Any] | None = None,
) -> Job:
    """A toy worker, unless told otherwise."""
    return Job(build, Name(index, life), before=before)


def result(backend: Backend, ticket: Ticket) -> Any:
    """Wait for the ticket; its value."""
    assert backend.wait([ticket], DEADLINE_S) == [ticket], f"{ticket.method} of {ticket.name} has no answer"
    return ticket.value


def error_of(backend: Backend, ticket: Ticket) -> BaseException:
    """Wait for the ticket; what it raised."""
    assert backend.wait([ticket], DEADLINE_S) == [ticket], f"{ticket.method} of {ticket.name} has no answer"
    assert isinstance(ticket.outcome, Error), f"{ticket.method} of {ticket.name} has raised nothing"
    return ticket.outcome.exception


def ask(backend: Backend, worker: Handle, method: str, *args: Any) -> Any:
    """Call, wait, and give the value."""
    return result(backend, backend.call(worker, method, *args))


def result_of_end(backend: Backend, worker: Handle) -> BaseException:
    """Wait for the worker's end; its cause."""
    return error_of(backend, worker.ended)


def lost_by_asking(backend: Backend, worker: Handle) -> BaseException:
    """What a call to a dead worker is answered with."""
    return error_of(backend, backend.call(worker, "pid"))


def run_once(make_backend: Callable[[], Backend]) -> list[int]:
    """A backend from its beginning to its end; the processes of its workers."""
    backend = make_backend()
    workers = [backend.spawn(job(index=index)) for index in range(3)]
    pids = [ask(backend, worker, "pid") for worker in workers]
    shared = backend.share({"array": np.ones(LARGE)})
    for worker in workers:
        ask(backend, worker, "read", shared)
        ask(backend, worker, "parcel", 1, LARGE).open()
    backend.kill(workers[0])
    backend.call(workers[1], "echo", np.ones(LARGE))
    backend.close()
    return pids


def descriptors() -> int:
    """How many this process has open."""
    return len(list(Path("/dev/fd").iterdir()))


def becomes(condition: Callable[[], bool], within_s: float) -> bool:
    """Whether it holds, now or after some of so many seconds."""
    until = time.monotonic() + within_s
    while not condition():
        if time.monotonic() >= until:
            return False
        threading.Event().wait(0.02)
    return True


def exists(pid: int, lingers_s: float = 0.0) -> bool:
    """Whether there is such a process, even when it was given some seconds to end."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return lingers_s == 0.0 or not _ends(pid, lingers_s)


def _ends(pid: int, within_s: float) -> bool:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(process, "rb"):
        return bool(select.select([process], [], [], within_s)[0])
