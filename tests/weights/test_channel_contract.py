"""Weights on their way to workers, in every place, and where what is released is gone at once."""

import pytest

import ray_cluster
from swath.testing import ChannelContract
from swath.testing.channel_contract import Readers
from swath.workers.local import InlineBackend, ThreadBackend
from swath.workers.packing import owned, pack, unpack
from swath.workers.process.backend import ProcessBackend


class Letter:
    """A shared value that nobody reads after its release."""

    def __init__(self, value):
        packed = pack(value)
        self.parts = packed.head, [memoryview(buffer).toreadonly() for buffer in owned(packed.buffers)]

    def __deepcopy__(self, memo):
        return self

    def open(self):
        assert self.parts is not None, "read after its release"
        return unpack(*self.parts)

    def release(self):
        self.parts = None


class AtOnce(InlineBackend):
    """Workers that have answered when `call` returns, so that no released value is in flight."""

    def call(self, handle, method, *args):
        ticket = super().call(handle, method, *args)
        self.wait([ticket])
        return ticket

    def share(self, value):
        return Letter(value)


class TestAtOnce(ChannelContract):
    @pytest.fixture
    def make_backend(self):
        return AtOnce


class TestInline(ChannelContract):
    @pytest.fixture
    def make_backend(self):
        return InlineBackend


class TestThreads(ChannelContract):
    @pytest.fixture
    def make_backend(self):
        return ThreadBackend


class TestProcesses(ChannelContract):
    @pytest.fixture
    def make_backend(self):
        return ProcessBackend


class TestRay(ChannelContract):
    @pytest.fixture
    def readers(self):
        with ray_cluster.visiting() as backend:
            readers = Readers(backend)
            readers.begin(0)
            readers.begin(1)
            yield readers
