"""What weights keep on their way to workers, as a pytest class: derive from it and say how to make the backend.

```python
import pytest

from swath.testing import ChannelContract


class TestWeightsInMyWorkers(ChannelContract):
    @pytest.fixture
    def make_backend(self):
        return MyBackend
```
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from swath.testing.backend.asking import result, visiting
from swath.weights.channel import Channel, Shared, Update
from swath.weights.manifest import Manifest, take
from swath.weights.snapshot import Snapshot, apply
from swath.workers.base import Backend, Handle, Job
from swath.workers.tickets import Name, Ticket


class Seen(NamedTuple):
    """What a worker says of the weights it has.

    Attributes:
        version: that it runs.
        values: the different ones among all its weights; one, as these tests fill them.
    """

    version: int
    values: set[float]


class Filled(nn.Module):
    """Weights of several kinds, all of one value, so that a mix of two versions shows itself."""

    def __init__(self, value: float = 0.0, *, width: int = 200, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width)).to(dtype)
        self.brief = nn.Parameter(torch.empty(3, 1, dtype=torch.bfloat16))
        self.tied = self.brief
        self.register_buffer("empty", torch.empty(0))
        self.fill(value)

    def fill(self, value: float) -> None:
        """Make all weights this value."""
        self.extra = value
        with torch.no_grad():
            for tensor in (*self.parameters(), *self.buffers()):
                tensor.fill_(value)

    def values(self) -> set[float]:
        """The different values there are."""
        tensors = [tensor for tensor in (*self.parameters(), *self.buffers()) if tensor.numel()]
        return {self.extra, *(value.item() for tensor in tensors for value in (tensor.min(), tensor.max()))}

    def get_extra_state(self) -> float:
        """A value as the others."""
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        """The value of another."""
        self.extra = state


class Reader:
    """A worker that has weights and says which."""

    def __init__(self) -> None:
        self.model = Filled()
        self.version = 0

    def manifest(self) -> Manifest:
        """What the model wants."""
        return Manifest.of(self.model)

    def read(self, update: Update | None) -> Seen:
        """Take an update and say what is there then."""
        if update is not None:
            for snapshot in update.opened().values():
                apply(snapshot, self.model)
            self.version = update.version
        return Seen(self.version, self.model.values())


class Counted:
    """A backend's `share` that knows what is held.

    Attributes:
        open: values that may still be sent.
        full: whether to fail, as a full store does.
    """

    def __init__(self, share: Callable[[Any], Shared]) -> None:
        self._share = share
        self.open = 0
        self.full = False

    def __call__(self, value: Any) -> Shared:
        """Share the value, or fail."""
        if self.full:
            raise MemoryError("the store is full")
        held = _Held(self._share(value))
        self.open += 1
        weakref.finalize(held, self._let_go)
        return held

    def _let_go(self) -> None:
        self.open -= 1


class _Held:
    """A shared value whose end is noticed here; as such it does not travel."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.open = shared.open

    def __reduce__(self) -> Any:
        return _itself, (self.shared,)

    def __deepcopy__(self, memo: Any) -> Any:
        return self.shared


def _itself(value: Any) -> Any:
    return value


class Readers:
    """Workers of a backend, and a channel to them."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.share = Counted(backend.share)
        self.channel = Channel(self.share)
        self.handles: dict[int, Handle] = {}
        self.manifest = Manifest.of(Filled())

    def begin(self, worker: int, life: int = 0) -> Name:
        """Begin a life of a worker."""
        name = Name(worker, life)
        self.handles[worker] = self.backend.spawn(Job(Reader, name))
        self.answer(self.handles[worker].ready)
        return name

    def snapshot(self, value: float) -> Snapshot | None:
        """Weights that are all of this value."""
        return take(Filled(value), self.manifest)

    def publish(self, value: float, workers: list[int] | None = None) -> int:
        """Publish weights that are all of this value."""
        return self.channel.publish({"policy": self.snapshot(value)}, workers)

    def ask(self, worker: int) -> Ticket:
        """Send a request."""
        handle = self.handles[worker]
        with self.channel.update_for(handle.name) as update:
            return self.backend.call(handle, "read", update)

    def answer(self, ticket: Ticket) -> Any:
        """What a request was answered with."""
        return result(self.backend, ticket)

    def read(self, worker: int) -> Seen:
        """Send a request and wait for the answer."""
        seen: Seen = self.answer(self.ask(worker))
        return seen


class ChannelContract:
    """Tests of a backend's `share` under a channel: whole snapshots, the newest ones, nothing overwritten or kept.

    Fixtures to override: `make_backend`, which gives a function that makes the backend.
    """

    @pytest.fixture
    def make_backend(self) -> Callable[[], Backend]:
        """Override: a function that makes the backend."""
        pytest.fail("override the fixture make_backend with a function that makes the backend")

    @pytest.fixture
    def readers(self, make_backend: Callable[[], Backend], request: pytest.FixtureRequest) -> Iterator[Readers]:
        """Workers 0 and 1, and a channel to them."""
        with visiting(make_backend, request.node) as backend:
            readers = Readers(backend)
            readers.begin(0)
            readers.begin(1)
            yield readers

    def test_a_worker_keeps_the_weights_it_is_built_with_until_some_are_published(self, readers: Readers) -> None:
        """Version 0."""
        assert readers.read(0) == Seen(0, {0.0})

    def test_a_request_brings_the_newest_weights_whole(self, readers: Readers) -> None:
        """Parameters, buffers and extra state of all dtypes, as they were when they were taken."""
        source = Filled(3.0, dtype=torch.float64)
        manifest = readers.answer(readers.backend.call(readers.handles[0], "manifest"))
        snapshot = take(source, manifest)
        source.fill(4.0)
        assert readers.channel.publish({"policy": snapshot}) == 1
        assert readers.read(0) == readers.read(1) == Seen(1, {3.0})

    def test_slow_readers_skip_versions(self, readers: Readers) -> None:
        """Only the newest is sent, and once."""
        for value in (1.0, 2.0, 3.0):
            readers.publish(value)
        assert readers.read(0) == Seen(3, {3.0})
        with readers.channel.update_for(readers.handles[0].name) as update:
            assert update is None, "it was sent twice"
        assert readers.read(0) == Seen(3, {3.0})

    def test_what_a_request_in_flight_names_is_not_overwritten(self, readers: Readers) -> None:
        """Each of many requests brings what was the newest when it was sent."""
        tickets = []
        for value in range(1, 9):
            readers.publish(float(value))
            tickets.append(readers.ask(0))
        assert [readers.answer(ticket) for ticket in tickets] == [Seen(value, {float(value)}) for value in range(1, 9)]

    def test_weights_for_some_workers_reach_these_only(self, readers: Readers) -> None:
        """The others keep their weights and their version."""
        readers.publish(1.0)
        readers.publish(2.0, [1])
        assert (readers.read(0), readers.read(1)) == (Seen(1, {1.0}), Seen(2, {2.0}))
        readers.channel.publish_each({0: {"policy": readers.snapshot(5.0)}, 1: {"policy": readers.snapshot(6.0)}})
        assert (readers.read(0), readers.read(1)) == (Seen(3, {5.0}), Seen(3, {6.0}))

    def test_a_new_life_and_a_new_worker_get_the_newest_with_their_first_request(self, readers: Readers) -> None:
        """Though the life before had been sent it."""
        readers.publish(1.0)
        readers.publish(2.0, [0])
        assert readers.read(0) == Seen(2, {2.0})
        readers.backend.kill(readers.handles[0])
        readers.begin(0, life=1)
        readers.begin(2)
        assert (readers.read(0), readers.read(2)) == (Seen(2, {2.0}), Seen(1, {1.0}))

    def test_a_version_without_weights_only_counts(self, readers: Readers) -> None:
        """Nothing travels."""
        readers.publish(1.0)
        assert readers.channel.publish({}) == 2
        assert readers.read(0) == Seen(2, {1.0})
        assert readers.share.open == 1

    def test_nothing_piles_up(self, readers: Readers) -> None:
        """However many are published, the newest for each is all that is kept."""
        for value in range(20):
            readers.publish(float(value))
            assert readers.share.open == 1
        readers.publish(20.0, [0])
        readers.publish(21.0, [0])
        assert readers.share.open == 2
        assert (readers.read(0), readers.read(1)) == (Seen(22, {21.0}), Seen(20, {19.0}))
        readers.publish(22.0)
        assert readers.share.open == 1

    def test_the_newest_can_be_read_where_it_was_published(self, readers: Readers) -> None:
        """For what is saved of a worker that is not there."""
        assert readers.channel.newest(0, "policy") is None
        readers.publish(1.0)
        readers.publish(2.0, [0])
        for worker, value in ((0, 2.0), (1, 1.0)):
            model = Filled()
            newest = readers.channel.newest(worker, "policy")
            assert newest is not None
            apply(newest[1], model)
            assert model.values() == {value}
        assert readers.share.open == 2

    def test_where_there_is_no_room_the_old_weights_stay_the_newest(self, readers: Readers) -> None:
        """The error reaches whoever publishes."""
        readers.publish(1.0)
        readers.share.full = True
        with pytest.raises(MemoryError, match="the store is full"):
            readers.publish(2.0)
        readers.share.full = False
        assert (readers.channel.version, readers.read(0)) == (1, Seen(1, {1.0}))
        assert readers.publish(3.0) == 2
        assert readers.read(0) == Seen(2, {3.0})

    def test_publishers_in_several_threads_come_one_after_the_other(self, readers: Readers) -> None:
        """Each version is whole, and workers only go forward."""
        published: dict[int, float] = {0: 0.0}

        def publish(first: int) -> None:
            for value in range(first, first + 5):
                published[readers.publish(float(value))] = float(value)

        threads = [threading.Thread(target=publish, args=(first,)) for first in (10, 20, 30)]
        for thread in threads:
            thread.start()
        seen = [readers.read(0)]
        while any(thread.is_alive() for thread in threads):
            seen.append(readers.read(0))
        for thread in threads:
            thread.join()
        seen.append(readers.read(0))
        assert sorted(published) == list(range(16))
        assert all(one.version <= other.version for one, other in pairwise(seen))
        assert seen[-1].version == 15
        assert [one.values for one in seen] == [{published[one.version]} for one in seen]
        assert readers.share.open == 1
