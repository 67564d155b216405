"""How tests are shared out when several processes run them: whole files, and all that is on Ray to one of them.

No example of a property is timed: how long it takes says how busy the machine is.
"""

import os
import signal

import pytest
from hypothesis import settings
from xdist.scheduler.loadscope import LoadScopeScheduling

import ray_cluster
from ray_cluster import is_on_ray
from swath.workers.process.backend import ProcessBackend
from toys import Gate

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
os.environ.setdefault("RAY_worker_niceness", "0")  # else any other load starves workers on Ray: Ray runs them at 15
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it; tests send it


class ByFile(LoadScopeScheduling):
    """Tests of a file share what is costly to begin, those on Ray the cluster; they take longest: they begin."""

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
    if hasattr(config, "workerinput"):  # one of several processes
        items.sort(key=lambda item: not is_on_ray(item.nodeid))


@pytest.fixture(scope="session")
def warm_processes():
    """Keep what worker processes are forked from, so that only the first one waits for imports."""
    backend = ProcessBackend()
    yield
    backend.close()


@pytest.fixture
def lent_actors():
    """Workers on Ray begin in actors that earlier tests have left alive: a fresh one takes seconds to import torch."""
    with ray_cluster.lending():
        yield


@pytest.fixture
def gate(tmp_path):
    """Holds up who goes through it until the test opens it, or ends."""
    gate = Gate.at(tmp_path / "gate")
    yield gate
    gate.open()


@pytest.fixture(autouse=True)
def ray_as_in_a_process_of_its_own(request, monkeypatch):
    """The cluster that another test of this process has left up is none for a test whose name does not say Ray.

    Nor are its processes and connections to be seen, which come and go: where those on Ray have all been, it is ended.
    """
    if not ray_cluster.is_up() or is_on_ray(request.node.nodeid):
        return
    if hasattr(request.config, "workerinput"):
        ray_cluster.end()
    else:
        monkeypatch.setattr("ray.is_initialized", lambda: False)
