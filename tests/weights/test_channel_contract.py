"""The contract of channels, for backends of this machine; on Ray, law 3 of collectors shows it."""

import threading
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from filled import Filled

from swath.weights.channel import Channel
from swath.weights.snapshot import Manifest, plan_copy, take_snapshot
from swath.workers.base import Job
from swath.workers.local import InlineBackend, ThreadBackend
from swath.workers.process.backend import ProcessBackend
from swath.workers.tickets import Name
from toys import end, result, visiting


class Report(NamedTuple):
    """A worker's version, and the different values among its weights, which these tests fill with one."""

    version: int
    values: set[float]


class Reader:
    """A worker that reports its weights."""

    def __init__(self):
        self.model = Filled(width=200)
        self.version = 0

    def manifest(self):
        return Manifest.of(self.model)

    def read(self, update):
        """Take an update, and return a report."""
        if update is not None:
            for snapshot in update.opened().values():
                plan_copy(snapshot, self.model)()
            self.version = update.version
        return Report(self.version, self.model.values)


class Readers:
    """Workers 0 and 1 of a backend, and a channel to them."""

    def __init__(self, backend):
        self.backend = backend
        self.channel = Channel(backend.share)
        self.handles = {}
        self.manifest = Manifest.of(Filled(width=200))
        self.begin(0)
        self.begin(1)

    def begin(self, worker, life=0):
        self.handles[worker] = self.backend.spawn(Job(Reader, Name(worker, life)))
        result(self.backend, self.handles[worker].ready)

    def snapshot(self, value):
        """Return weights filled with this value."""
        return take_snapshot(Filled(value, width=200), self.manifest)

    def publish(self, value, workers=None):
        return self.channel.publish({"policy": self.snapshot(value)}, workers)

    def ask(self, worker):
        """Send a request, and return its ticket."""
        handle = self.handles[worker]
        with self.channel.update_for(handle.name) as update:
            return self.backend.call(handle, "read", update)

    def answer(self, ticket):
        return result(self.backend, ticket)

    def read(self, worker):
        return self.answer(self.ask(worker))


class ChannelContract:
    """Requests bring the newest snapshots whole. To override: the fixture `make_backend`."""

    @pytest.fixture
    def readers(self, make_backend, request):
        with visiting(make_backend, request.node) as backend:
            yield Readers(backend)

    def test_a_request_brings_the_newest_weights_whole(self, readers):
        source = Filled(3.0, width=200, dtype=torch.float64)
        manifest = readers.answer(readers.backend.call(readers.handles[0], "manifest"))
        snapshot = take_snapshot(source, manifest)
        source.fill(4.0)
        assert readers.channel.publish({"policy": snapshot}) == 1
        assert readers.read(0) == readers.read(1) == Report(1, {3.0})

    def test_publishers_in_several_threads_come_one_after_the_other(self, readers):
        published: dict[int, float] = {0: 0.0}

        def publish(first):
            for value in range(first, first + 5):
                published[readers.publish(float(value))] = float(value)

        threads = [threading.Thread(target=publish, args=(first,)) for first in (10, 20, 30)]
        for thread in threads:
            thread.start()
        reports = [readers.read(0)]
        while any(thread.is_alive() for thread in threads):
            reports.append(readers.read(0))
        end(*threads)
        reports.append(readers.read(0))
        assert sorted(published) == list(range(16))
        assert all(earlier.version <= later.version for earlier, later in pairwise(reports))
        assert reports[-1].version == 15
        assert [earlier.values for earlier in reports] == [{published[earlier.version]} for earlier in reports]


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
    def make_backend(self, fork_server):
        return ProcessBackend
