"""The backend contract, on every place for workers."""

import pytest

from swath.testing import BackendContract
from swath.workers.local import InlineBackend, ThreadBackend
from swath.workers.process.backend import ProcessBackend


class TestInline(BackendContract):
    concurrent = False
    own_process = False

    @pytest.fixture
    def make_backend(self):
        return InlineBackend


class TestThreads(BackendContract):
    own_process = False

    @pytest.fixture
    def make_backend(self):
        return ThreadBackend


class TestProcesses(BackendContract):
    @pytest.fixture
    def make_backend(self, warm_processes):
        return ProcessBackend
