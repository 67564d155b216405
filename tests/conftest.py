"""Distribution of tests over several processes: whole files, and all tests on Ray to one process.

Tests marked `gpu` are skipped where torch finds no CUDA device.
Examples of properties have no deadline, since their time depends on the load of the machine.
"""

import os
import signal

import pytest
import torch
from hypothesis import settings
from xdist.scheduler.loadscope import LoadScopeScheduling

import ray_cluster
from ray_cluster import is_on_ray
from swath.collectors.service import PRELOADED
from swath.workers.process.backend import PRELOAD, ProcessBackend
from toys import Gate, job, result

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
os.environ.setdefault("RAY_worker_niceness", "0")  # else any other load starves workers on Ray: Ray runs them at 15
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it; tests send it


class ByFile(LoadScopeScheduling):
    """Group tests by file, and tests on Ray in one group, which comes first, since it takes longest."""

    def _split_scope(self, nodeid):
        return "on Ray" if is_on_ray(nodeid) else nodeid.split("::")[0]


def pytest_xdist_make_scheduler(config, log):
    config.option.loadscopereorder = False
    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    for item in items:
        if is_on_ray(item.nodeid):
            item.add_marker("ray")
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
    if hasattr(config, "workerinput"):  # one of several processes
        items.sort(key=lambda item: not is_on_ray(item.nodeid))


@pytest.fixture(scope="session")
def fork_server():
    """Keep the process that forks workers, which has imported their modules: it takes seconds to start another."""
    backend = ProcessBackend((*PRELOAD, *PRELOADED))
    first = backend.spawn(job())
    result(backend, first.ready)
    backend.kill(first)
    yield backend
    backend.close()


@pytest.fixture
def lent_actors():
    """Run workers on Ray in actors of earlier tests, since a new actor takes seconds to import torch."""
    with ray_cluster.lending():
        yield


@pytest.fixture
def gate(tmp_path):
    """Return a gate that blocks callers until the test opens it, or ends."""
    gate = Gate.at(tmp_path / "gate")
    yield gate
    gate.open()


@pytest.fixture(autouse=True)
def ray_as_in_a_process_of_its_own(request, monkeypatch):
    """Hide a running Ray cluster from tests whose name does not contain "ray".

    Its processes and connections, which come and go, are hidden too: the cluster ends after the last test on Ray.
    """
    if not ray_cluster.is_up() or is_on_ray(request.node.nodeid):
        return
    if hasattr(request.config, "workerinput"):
        ray_cluster.end()
    else:
        monkeypatch.setattr("ray.is_initialized", lambda: False)
