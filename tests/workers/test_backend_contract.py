"""The backend contract, on every place for workers."""

import pytest

from swath.testing import BackendContract
from swath.workers.inline import InlineBackend
from swath.workers.process.backend import ProcessBackend
from swath.workers.thread import ThreadBackend


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
