"""Weights on their way to workers, in every place, and the reference: a place where nothing ever goes wrong."""

import pytest

from swath.errors import WorkerLost
from swath.testing import ChannelContract
from swath.workers.base import Handle
from swath.workers.inline import InlineBackend
from swath.workers.outcome import Error, Value
from swath.workers.packing import owned, pack, unpack
from swath.workers.process import ProcessBackend
from swath.workers.thread import ThreadBackend
from swath.workers.tickets import Board, Ticket


class Letter:
    """A shared value that is bytes; what is read after its release is not there."""

    def __init__(self, value):
        packed = pack(value)
        self.parts = packed.head, owned(packed.buffers)

    def open(self):
        head, buffers = self.parts
        for buffer in buffers:
            buffer.flags.writeable = False
        return unpack(head, buffers)

    def release(self):
        self.parts = None


class AtOnce:
    """A backend whose workers answer before `call` returns."""

    def __init__(self):
        self.board = Board()
        self.workers = {}

    def spawn(self, job):
        handle = Handle(job)
        self.workers[handle] = job.build()
        self.board.settle(handle.ready, Value(None))
        return handle

    def call(self, handle, method, *args):
        ticket = Ticket(handle.name, method)
        self.board.settle(ticket, Value(getattr(self.workers[handle], method)(*args)))
        return ticket

    def wait(self, tickets, timeout=None, interrupted=None):
        return self.board.wait(tickets, timeout, interrupted)

    def share(self, value):
        return Letter(value)

    def watched(self, size):
        raise TypeError("no numbers can be watched here")

    def wake(self):
        self.board.wake()

    def room(self, handle):
        return "nothing", "everything"

    def kill(self, handle):
        self.workers.pop(handle, None)
        self.board.settle(handle.ended, Error(WorkerLost("was killed")))

    def close(self):
        self.workers.clear()


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
    def make_backend(self, warm_processes):
        return ProcessBackend
