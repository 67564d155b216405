"""The backend contract on Ray."""

from dataclasses import replace
from functools import partial

import pytest

import ray_cluster
from swath.testing import BackendContract
from swath.testing.backend.asking import Visit
from swath.testing.toy_worker import ToyWorker


class Changeling:
    """Is what it was built as last."""

    def __init__(self, build):
        self.become(build)

    def become(self, build):
        self._object = build()

    def __getattr__(self, name):
        return getattr(self._object, name)


class Revisit(Visit):
    """Rebuilds plain workers that tests before have left alive: a fresh actor takes seconds to import torch."""

    def __init__(self, backend, idle):
        super().__init__(backend)
        self._idle = idle

    def spawn(self, job):
        if job.build is not ToyWorker or job.before or job.threads != 1 or job.name.life or not self._idle:
            return super().spawn(replace(job, build=partial(Changeling, job.build)))
        worker = self._idle.pop()
        self._workers.append(worker)
        self.call(worker, "become", job.build)
        return worker

    def over(self):
        alive = [worker for worker in self._workers if worker.job.threads == 1 and not worker.ended.done]
        self._idle.extend(alive[: MOST_IDLE - len(self._idle)])
        self._workers = [worker for worker in self._workers if worker not in self._idle]
        super().over()


MOST_IDLE = 3


class TestRay(BackendContract):
    watches = False
    tells_exit_codes = False
    lingers_s = 30.0  # Ray says so first; a process that is stopped is killed after 5 s

    @pytest.fixture
    def make_backend(self):
        return ray_backend

    @pytest.fixture
    def backend(self, kept):
        visit = Revisit(*kept)
        yield visit
        visit.over()


def ray_backend():
    ray_cluster.up()
    from swath.workers.ray import RayBackend

    return RayBackend()


@pytest.fixture(scope="module")
def kept():
    backend = ray_backend()
    yield backend, []
    backend.close()
