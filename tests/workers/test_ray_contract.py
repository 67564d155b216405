"""The backend contract on Ray."""

import pytest

import ray_cluster
from swath.testing import BackendContract


class TestRay(BackendContract):
    watches = False
    sees_idle_deaths = False
    tells_exit_codes = False
    lingers_s = 60.0  # Ray says so first; a process that is stopped is killed after 5 s

    @pytest.fixture
    def make_backend(self):
        return ray_cluster.backend

    @pytest.fixture
    def backend(self):
        with ray_cluster.visiting() as visit:
            yield visit
