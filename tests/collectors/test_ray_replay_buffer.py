"""A replay buffer in an actor of Ray: one round trip per call, handles for others, an end that nobody hides."""

import gc
import os
import pickle
import signal
import sys
import threading

import pytest
import torch
from tensordict import TensorDict

import ray_cluster
from plain import plain
from swath import RayReplayBuffer
from swath.collectors.buffer_client import RayReplayBufferClient
from swath.errors import Closed, PlacementFailed, RemoteFailure, WorkerLate, WorkerLost
from swath.testing.backend.asking import exists
from swath.testing.toy_worker import Gate, Odd
from swath.workers.ray import held, residence
from swath.workers.ray.freight import packed
from swath.workers.ray.messages import Freight

LINGERS_S = 60.0
"""How long Ray takes, at most, to end a process."""

pytestmark = pytest.mark.usefixtures("ray")


class Rows:
    """A buffer of rows in a list."""

    def __init__(self, capacity=1000, batch_size=2):
        self.capacity, self._batch_size, self.dim_extend = capacity, batch_size, 0
        self.empty()

    @property
    def batch_size(self):
        return self._batch_size

    @property
    def write_count(self):
        return self.written

    def extend(self, td):
        self.rows.extend(td.unbind(0))
        self.written += len(td)
        return torch.arange(len(self.rows))[-len(td) :]

    def add(self, row):
        self.rows.append(row)
        return self

    def sample(self, batch_size=None):
        return torch.stack(self.rows[: batch_size or self.batch_size])

    def empty(self):
        self.rows, self.written = [], 0

    def next(self):
        return self.rows[0]

    def update_priority(self, index, *, priority):
        return {"index": index, "priority": priority}

    def pid(self):
        return os.getpid()

    def threads(self):
        return torch.get_num_threads()

    def wait(self, gate):
        gate.go_through()

    def raises(self, error):
        raise error

    def strange(self):
        raise Odd("not", second="rebuilt")

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]

    def __setitem__(self, index, row):
        self.rows[index] = row


class Fickle(Rows):
    """Can be built from the third time on."""

    attempts = 0

    def __init__(self):
        type(self).attempts += 1
        if self.attempts < 3:
            raise OSError("no disk")
        super().__init__()


@pytest.fixture(scope="module")
def ray():
    return ray_cluster.up()


@pytest.fixture(scope="module")
def actor(ray):
    """For tests that leave it as it is; a fresh one takes seconds to import torch."""
    buffer = RayReplayBuffer(500, replay_buffer_cls=Rows, batch_size=3, remote_config={"num_cpus": 2})
    yield buffer
    buffer.close()


@pytest.fixture
def buffer(actor):
    actor.empty()
    return actor


@pytest.fixture
def own(ray):
    """Makes buffers that a test may ruin."""
    made = []

    def make(*args, **options):
        made.append(RayReplayBuffer(*args, **{"replay_buffer_cls": Rows, **options}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def rows(n, first=0):
    return TensorDict({"x": torch.arange(first, first + n), "next": {"y": torch.rand(n, 2)}}, n)


# ---- calls


def test_every_public_method_is_called_in_the_actor_with_its_arguments(buffer):
    assert buffer.pid() != os.getpid()
    assert buffer.extend(rows(4)).tolist() == [0, 1, 2, 3]
    assert buffer.sample()["x"].tolist() == [0, 1, 2]
    assert buffer.sample(batch_size=1)["x"].tolist() == [0]
    assert buffer.next()["x"] == 0
    assert buffer.update_priority(3, priority=0.5) == {"index": 3, "priority": 0.5}
    assert callable(buffer.empty)
    assert {"extend", "sample", "update_priority", "client", "close"} <= set(dir(buffer))


def test_the_class_is_called_in_the_actor_with_all_other_arguments(buffer):
    assert (buffer.capacity, buffer.batch_size) == (500, 3)


def test_length_and_items(buffer):
    assert len(buffer) == 0
    buffer.extend(rows(4))
    assert len(buffer) == 4
    assert buffer[1]["x"] == 1
    buffer[1] = rows(1, first=7)[0]
    assert buffer[1]["x"] == 7
    with pytest.raises(IndexError):
        buffer[9]


def test_it_is_iterated_as_often_and_as_far_as_one_likes(buffer):
    buffer.extend(rows(3))
    assert [row["x"].item() for row in buffer] == [0, 1, 2]
    assert [(one["x"].item(), other["x"].item()) for one, other in zip(buffer, buffer, strict=True)] == [
        (0, 0),
        (1, 1),
        (2, 2),
    ]
    for row in buffer:
        assert row["x"] == 0
        break
    assert [row["x"].item() for row in buffer.client()] == [0, 1, 2]


def test_properties_and_attributes_are_those_of_the_buffer(buffer):
    buffer.extend(rows(4))
    assert (buffer.batch_size, buffer.write_count, buffer.dim_extend) == (3, 4, 0)
    assert buffer.written == 4
    assert (buffer.is_alive, buffer.service_backend, buffer.transport_kind) == (True, "ray", "ray")
    buffer.dim_extend = 1
    assert buffer.client().dim_extend == 1
    buffer.dim_extend = 0
    with pytest.raises(AttributeError, match="nothing"):
        buffer.nothing  # noqa: B018
    assert not hasattr(buffer, "_storage")


def test_a_method_that_returns_the_buffer_returns_this_one(buffer):
    assert buffer.add(rows(1)[0]) is buffer
    assert len(buffer) == 1


def test_what_it_gives_is_the_callers_own(buffer):
    buffer.extend(rows(3))
    sample = buffer.sample()
    sample["x"][0] = 9
    assert buffer.sample()["x"][0] == 0


def test_data_travel_beside_the_pickle(buffer, monkeypatch):
    wires = []

    def spied(value):
        wires.append(packed(value))
        return wires[-1]

    monkeypatch.setattr(held, "packed", spied)
    buffer.extend(TensorDict({"pixels": torch.zeros(10, 2**18, dtype=torch.uint8)}, 10))
    (wire,) = wires
    assert isinstance(wire, Freight)
    assert len(wire.head) < 10_000
    assert sum(part.raw().nbytes for part in wire.buffers) == 10 * 2**18
    assert buffer.sample(10)["pixels"].shape == (10, 2**18)


def test_exceptions_of_the_buffer_are_of_their_own_type_and_say_where_they_were_raised(buffer):
    with pytest.raises(ZeroDivisionError) as caught:
        buffer.raises(ZeroDivisionError("ouch"))
    assert any("remote traceback" in note and "in raises" in note for note in caught.value.__notes__)
    with pytest.raises(RemoteFailure, match="not rebuilt"):
        buffer.strange()
    with pytest.raises(TypeError):
        buffer.update_priority()
    assert buffer.is_alive


def test_a_method_that_takes_too_long_is_late(buffer, tmp_path):
    gate = Gate.at(tmp_path / "gate")
    hasty = buffer.client()
    assert hasty._reach._patience == 60
    hasty._reach = pickle.loads(pickle.dumps(hasty._reach))
    hasty._reach._patience = 0.05
    with pytest.raises(WorkerLate, match=r"has not answered wait\(\) within 0.05 s; it may still do") as caught:
        hasty.wait(gate)
    assert (caught.value.workers, caught.value.deadline) == ((0,), 0.05)
    assert isinstance(caught.value, TimeoutError)
    gate.open()
    assert len(buffer) == 0


# ---- handles


def test_clients_travel_and_cannot_end_the_buffer(buffer):
    client = buffer.client()
    for name in ("start", "close", "shutdown"):
        assert not hasattr(client, name)
    same = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(client))))
    same.extend(rows(2))
    assert same.pid() == buffer.pid()
    assert len(client) == len(buffer) == 2
    assert "Rows" in repr(client)


def test_so_many_clients(buffer):
    clients = buffer.clients(3)
    assert [type(one) for one in clients] == [RayReplayBufferClient] * 3
    assert len(set(map(id, clients))) == 3
    assert clients[0].client().pid() == clients[1].clients(1)[0].pid()
    with pytest.raises(ValueError, match="n=0 must be at least 1"):
        buffer.clients(0)
    for wrong in (True, 1.5, "2"):
        with pytest.raises(TypeError, match="n="):
            buffer.clients(wrong)


def test_the_buffer_itself_stays_where_it_is(buffer):
    with pytest.raises(TypeError, match=r"send what client\(\) returns"):
        pickle.dumps(buffer)


def test_many_threads_may_call(buffer):
    threads = [threading.Thread(target=buffer.extend, args=(rows(5),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(buffer) == buffer.write_count == 20


# ---- how it begins


def test_it_asks_for_one_cpu_or_what_it_is_told(own, buffer):
    assert buffer._residence._handle.options == {"num_cpus": 2}
    assert buffer.threads() == 2
    assert buffer.start() is buffer
    assert own(delayed_init=True)._residence._handle.options == {"num_cpus": 1}


def test_where_there_is_no_room_it_says_what_it_asks_for(own, monkeypatch):
    monkeypatch.setattr(residence, "PLACEMENT_S", 0.1)
    with pytest.raises(PlacementFailed, match=r"not ready after 0.1 s: it asks for num_cpus=1000; there is .* CPU"):
        own(remote_config={"num_cpus": 1000})


def test_what_building_it_raises_is_raised_at_once(own):
    with pytest.raises(OSError, match="no disk"):
        own(replay_buffer_cls=Fickle)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"transport": "distributed"}, ValueError, "transport='distributed' must be 'auto' or 'ray'"),
        ({"transport": "rpc"}, ValueError, "transport='rpc'"),
        ({"transport_options": {"port": 1}}, ValueError, "transport_options=.*leave it out"),
        ({"replay_buffer_cls": 5}, TypeError, "replay_buffer_cls=5 must be a class"),
        ({"remote_config": {"max_restarts": 3}}, ValueError, "max_restarts=3"),
        ({"remote_config": {"colour": "red"}}, ValueError, "colour"),
        ({"rows": threading.Lock()}, TypeError, "cannot be sent to Ray"),
    ],
    ids=plain,
)
def test_what_cannot_be_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        RayReplayBuffer(**{"replay_buffer_cls": Rows, **options})


def test_without_torchrl_the_error_names_the_extra_and_the_argument(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "torchrl"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchrl", None)
    with pytest.raises(ImportError, match=r"replay_buffer_cls.*swath\[torchrl\]"):
        RayReplayBuffer()


def test_without_ray_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"swath\[ray\]"):
        RayReplayBuffer(replay_buffer_cls=Rows)


# ---- how it ends


def test_a_dead_actor_is_told_of_and_never_replaced(own):
    buffer = own()
    client = buffer.client()
    buffer.extend(rows(3))
    os.kill(buffer.pid(), signal.SIGKILL)
    with pytest.raises(WorkerLost, match=r"the replay buffer \(Rows on Ray\) is lost with all that was in it"):
        len(buffer)
    for _ in range(2):
        with pytest.raises(WorkerLost):
            client.sample()
    assert not buffer.is_alive
    assert repr(buffer) == "<RayReplayBuffer Rows: gone>"


def test_closing_ends_the_actor_and_twice_is_fine(own):
    buffer = own(delayed_init=True)
    client = buffer.client()
    assert repr(buffer) == "<RayReplayBuffer Rows: up>"
    buffer.extend(rows(3))
    pid = buffer.pid()
    with pytest.raises(ValueError, match="timeout=-1"):
        buffer.shutdown(-1)
    buffer.shutdown(timeout=20)
    buffer.close()
    assert not buffer.is_alive
    assert not exists(pid, LINGERS_S)
    for use in (lambda: len(buffer), buffer.sample, buffer.start, lambda: next(iter(buffer))):
        with pytest.raises(Closed):
            use()
    with pytest.raises(WorkerLost):
        len(client)


def test_what_is_built_at_its_first_use_may_fail_and_ends_when_nobody_has_it_any_more():
    buffer = RayReplayBuffer(replay_buffer_cls=Fickle, delayed_init=True)
    for use in (buffer.sample, buffer.pid):
        with pytest.raises(OSError, match="no disk"):
            use()
    pid = buffer.pid()
    del buffer, use
    gc.collect()
    assert not exists(pid, LINGERS_S)
