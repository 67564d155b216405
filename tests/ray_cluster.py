"""The one Ray cluster of a test run, on this machine: started by the first test that needs it, ended after the last."""

import os
import re
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from unittest.mock import patch

import pytest

from swath.workers import create
from swath.workers.tickets import Name

CLOSE_S = 1.0
_begun = []
_ours = create.backend
ON_RAY = re.compile(r"(?<![A-Za-z])ray(?![a-z])|Ray(?![a-z])")


def is_on_ray(nodeid):
    """Tell whether a test may need the cluster, by the names of the test, its class, its file or its parameters."""
    return ON_RAY.search(nodeid) is not None


def is_up():
    """Tell whether a test of this process has started the cluster; `ray.is_initialized` may be patched."""
    return bool(_begun)


def up():
    """Start the cluster unless it runs, and return the module `ray`. It claims more resources than tests need."""
    ray = pytest.importorskip("ray", reason="ray is not installed; pip install 'swath[ray]'")
    if "PYTEST_XDIST_WORKER" in os.environ:
        test = os.environ["PYTEST_CURRENT_TEST"]
        assert is_on_ray(test), f"{test} needs Ray, so its name must say 'ray': conftest.py keeps these together"
    if not ray.is_initialized():
        os.environ["RAY_AUTH_MODE"] = "disabled"  # else Ray leaves a token in the user's home
        room = {"num_cpus": 64, "_memory": 256 * 2**30}
        ray.init("local", **room, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        _begun.append(room)
    return ray


def end():
    """End the cluster, and all actors."""
    pytest.importorskip("ray").shutdown()
    _begun.clear()


def backend():
    """Return a new backend for one test."""
    up()
    from swath.workers.ray.backend import RayBackend

    return RayBackend()


@contextmanager
def visiting():
    """Return a shared backend for one test; actors that a test leaves alive serve the same workers in the next."""
    loan = Loan(*_kept(), builds=type)
    yield loan
    loan.close()


@cache
def _kept():
    return backend(), {}


def lent(name, **options):
    """Stands for `swath.workers.create.backend`: on Ray, a backend for one service; see `Loan`."""
    return Loan(*_kept()) if name == "ray" else _ours(name, **options)


@contextmanager
def lending():
    """Run workers of services that are built in the body in shared actors."""
    up()
    with ExitStack() as stack:
        for module in ("workers.create", "collectors.service", "rollout_workers.worker_set.members"):
            stack.enter_context(patch(f"swath.{module}.backend", lent))
        yield


def collector(*args, **options):
    """Return a `RayCollector` with shared actors."""
    from swath import RayCollector

    with lending():
        return RayCollector(*args, **options)


class Changeling:
    """An object that delegates to the last one that was built."""

    def __init__(self, build):
        self.become(build)

    def become(self, build):
        self._object = build()

    def __getattr__(self, name):
        return getattr(self._object, name)


class Loan:
    """A backend whose workers begin their first lives in idle actors of earlier workers, if there are any.

    Args:
        backend: the shared backend.
        idle: idle workers by name, public methods and resources.
        builds: classes that can be built in running actors; a function may fail, and is built in a new actor.
    """

    def __init__(self, backend, idle, builds=object):
        self._backend, self._idle, self._builds, self._workers = backend, idle, builds, []

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def spawn(self, job):
        worker = self._idle.pop(_kind(job), None) if isinstance(job.build, self._builds) else None
        if worker is None or worker.ended.done:
            worker = self._backend.spawn(replace(job, build=partial(Changeling, job.build)))
        else:
            worker.job, worker.ready = job, self._backend.call(worker, "become", job.build)
        self._workers.append(worker)
        return worker

    def close(self):
        workers, self._workers = self._workers, []
        free = {self._backend.call(worker, "become", dict): worker for worker in workers if worker.name.life == 0}
        waiting = list(free)
        while waiting and self._backend.wait(waiting, CLOSE_S):
            waiting = [ticket for ticket in waiting if not ticket.done]
        answered = [worker for ticket, worker in free.items() if ticket.done]
        free = {worker for worker in answered if not (worker.kill_reason or worker.ended.done)}
        for worker in workers:
            if worker in free and _kind(worker.job) not in (None, *self._idle):
                self._idle[_kind(worker.job)] = worker
            else:
                self._backend.kill(worker)


def _kind(job):
    """Return what distinguishes actors that a worker can use: some changes of an actor are permanent."""
    first = job.name.life == 0 and job.threads == 1 and not job.initializer and "name" not in job.resources
    return (Name(job.name.worker, 0), job.public, str(sorted(job.resources.items()))) if first else None
