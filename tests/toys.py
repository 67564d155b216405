"""Shared code of several test folders: a toy worker, a gate without a clock, and calls that wait."""

import os
import random
import select
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from swath.workers.base import Job
from swath.workers.outcome import Error
from swath.workers.packing import Parcel
from swath.workers.tickets import Name

DEADLINE_S = 900.0
"""The deadline for actions that take seconds, a minute on a busy machine: half the time limit of a test."""

LARGE = 3_000_000


class Odd(Exception):
    """Cannot be rebuilt from its arguments, like some users' exceptions."""

    def __init__(self, first, *, second):
        super().__init__(f"{first} {second}")


class Gate:
    """Stops workers of this machine until it is opened; works across processes.

    Args:
        path: of a directory.
    """

    def __init__(self, path):
        self.path = path

    @classmethod
    def at(cls, path):
        """Return a closed gate."""
        path.mkdir(exist_ok=True)
        for name in ("arrived", "open"):
            os.mkfifo(path / name)
        return cls(path)

    def go_through(self):
        """Announce the worker, and wait until the gate is open."""
        for name, mode in (("arrived", "wb"), ("open", "rb")):
            with (self.path / name).open(mode):
                pass

    def await_arrival(self):
        """Wait, in the test, until a worker is at the gate."""
        arrived = os.open(self.path / "arrived", os.O_RDONLY | os.O_NONBLOCK)  # readable when a worker has closed it
        with os.fdopen(arrived, "rb") as file:
            assert select.select([file], [], [], DEADLINE_S)[0], f"no worker came to {self.path} in {DEADLINE_S} s"

    def open(self):
        """Let present and later workers through."""
        passage = self.path / "passage"
        for name in ("arrived", "open"):
            both_ends = os.open(self.path / name, os.O_RDWR | os.O_NONBLOCK)  # present workers go on
            passage.touch()
            passage.replace(self.path / name)  # later ones find a plain file
            os.close(both_ends)


class ToyWorker:
    def __init__(self, start=0, *, gate=None, error=None):
        if gate is not None:
            gate.go_through()
        if error is not None:
            raise error
        self.count = start
        self.kept = None

    def add(self, number):
        self.count += number
        return self.count

    def echo(self, value):
        return value

    def keep(self, value):
        self.kept = value
        return value

    def kept_sum(self):
        return float(self.kept.sum())

    def run(self, function, *args):
        return function(*args)

    def fail(self, error):
        raise error

    def fail_oddly(self):
        raise Odd("rather", second="odd")

    def lock(self):
        """Return an object that cannot be pickled."""
        return threading.Lock()

    def parcel(self, number, size):
        """Return a parcel whose head has the number, and whose body is filled with it."""
        body = {"array": np.full(size, number, dtype=np.uint8), "tensor": torch.full((size, 1), number)}
        return Parcel({"number": number}, body)

    def read(self, shared):
        """Return the sum of a shared array, and whether it can be written."""
        array = shared.open()["array"]
        return float(array.sum()), bool(array.flags.writeable)

    def wait_at(self, gate):
        gate.go_through()

    def draw(self):
        """Draw from the process's random states."""
        return random.random(), float(np.random.random()), float(torch.rand(()))

    def threads(self):
        return torch.get_num_threads()

    def pid(self):
        return os.getpid()

    def exit(self, code):
        os._exit(code)

    def until(self, counters, index, number):
        """Wait until a shared counter reaches the number, and return all counters."""
        values = counters.open()
        while values[index] < number:
            os.sched_yield()
        return values.tolist()


# How tests ask workers


def job(build=ToyWorker, *, index=0, life=0, initializer=None):
    return Job(build, Name(index, life), initializer=initializer)


def result(backend, ticket):
    """Wait for the ticket, and return its value."""
    assert backend.wait([ticket], DEADLINE_S) == [ticket], f"{ticket.method} of {ticket.name} has no answer"
    return ticket.value


def error_of(backend, ticket):
    """Wait for the ticket, and return its exception."""
    assert backend.wait([ticket], DEADLINE_S) == [ticket], f"{ticket.method} of {ticket.name} has no answer"
    assert isinstance(ticket.outcome, Error), f"{ticket.method} of {ticket.name} has raised nothing"
    return ticket.outcome.exception


def ask(backend, worker, method, *args):
    """Call, wait, and return the value."""
    return result(backend, backend.call(worker, method, *args))


def result_of_end(backend, worker):
    """Wait for the worker's end, and return its cause."""
    return error_of(backend, worker.ended)


def becomes(condition, within_s=DEADLINE_S):
    """Return whether the condition holds in time; for states without a signal: the table of processes, Ray's counts."""
    until, pause = time.monotonic() + within_s, threading.Event()
    while not condition():
        if time.monotonic() >= until:
            return False
        pause.wait(0.01)
    return True


def end(*threads):
    """Wait until the threads have ended."""
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), f"{thread.name} has not ended in {DEADLINE_S} s"


def first_in_time(late, attempt, *args, tries=20, **options):
    """Try until the attempt is in time: a deadline under test is short, and the machine may be busy."""
    for _ in range(tries - 1):
        with suppress(late):
            return attempt(*args, **options)
    return attempt(*args, **options)


def descriptors():
    """Count the open descriptors of this process."""
    return len(list(Path("/dev/fd").iterdir()))


def exists(pid, lingers_s=0.0):
    """Return whether the process exists, after it had some seconds to end."""
    try:
        with os.fdopen(os.pidfd_open(pid), "rb") as process:
            return not (lingers_s and select.select([process], [], [], lingers_s)[0])
    except ProcessLookupError:
        return False


class Visit:
    """A shared backend, as one of the tests that use it in turn sees it."""

    def __init__(self, backend):
        self._backend = backend
        self._workers = []

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def spawn(self, job):
        self._workers.append(self._backend.spawn(job))
        return self._workers[-1]

    def over(self):
        """Kill the spawned workers."""
        for worker in self._workers:
            self._backend.kill(worker)
        for worker in self._workers:
            result_of_end(self._backend, worker)


@contextmanager
def visiting(make_backend, test):
    """Yield a backend that is made once for all tests of a class, since that may be slow."""
    import pytest  # not in workers, which import this module too

    node = test.getparent(pytest.Class)
    if "backend" not in vars(node):
        node.backend = make_backend()
        node.addfinalizer(node.backend.close)
    visit = Visit(node.backend)
    yield visit
    visit.over()


class MaskedEnv(gym.Env):
    """An env that rewards actions that its mask forbids; an episode has five steps."""

    observation_space = spaces.Dict(x=spaces.Box(-9, 9, (2,), np.float32), action_mask=spaces.MultiBinary(3))
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_nr = 0
        return self._seen(), {}

    def step(self, action):
        broken = self._seen()["action_mask"][action] == 0
        self.step_nr += 1
        return self._seen(), float(broken), self.step_nr == 5, False, {}

    def _seen(self):
        return {"x": np.float32([self.step_nr, 0]), "action_mask": np.int8([1, self.step_nr % 2, 1 - self.step_nr % 2])}
