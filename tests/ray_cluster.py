"""The one Ray cluster of a test run, on this machine: started by the first test that needs it, ended with the run."""

import os
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial

import pytest

from swath.testing.backend.asking import Visit


def up():
    """Start it, unless it is up; the module `ray`. It has more room, on paper, than tests can take."""
    ray = pytest.importorskip("ray", reason="ray is not installed; pip install 'swath[ray]'")
    if not ray.is_initialized():
        os.environ["RAY_AUTH_MODE"] = "disabled"  # else Ray leaves a token in the user's home
        room = {"num_cpus": 64, "_memory": 256 * 2**30}
        ray.init(**room, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    return ray


def backend():
    """A backend of its own for one test."""
    up()
    from swath.workers.ray.backend import RayBackend

    return RayBackend()


@contextmanager
def visiting():
    """A backend as one test sees it; an actor that one test leaves alive is the same worker's for the next."""
    visit = Revisit(*_kept())
    yield visit
    visit.over()


@cache
def _kept():
    return backend(), {}


class Changeling:
    """Is what it was built as last."""

    def __init__(self, build):
        self.become(build)

    def become(self, build):
        self._object = build()

    def __getattr__(self, name):
        return getattr(self._object, name)


class Revisit(Visit):
    """Builds plain workers anew in actors that it finds: a fresh one takes seconds to import torch.

    Args:
        backend: others use it too, one after another.
        idle: workers that have nothing to do, by their names.
    """

    def __init__(self, backend, idle):
        super().__init__(backend)
        self._idle = idle

    def spawn(self, job):
        if not isinstance(job.build, type) or job.before or job.threads != 1 or job.name not in self._idle:
            return super().spawn(replace(job, build=partial(Changeling, job.build)))
        worker = self._idle.pop(job.name)
        self._workers.append(worker)
        self.call(worker, "become", job.build)
        return worker

    def over(self):
        for worker in [worker for worker in self._workers if worker.job.threads == 1 and not worker.ended.done]:
            if worker.name.life == 0 and worker.name not in self._idle:
                self._idle[worker.name] = worker
                self._workers.remove(worker)
        super().over()
