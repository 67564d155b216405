"""Packing and unpacking of values, exceptions and waits."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from swath.errors import RemoteFailure, WorkerLate
from swath.workers.outcome import deserialize_error, serialize_error
from swath.workers.packing import pack, unpack, writable_copies
from swath.workers.tickets import Name, Ticket, TicketMonitor
from toys import DEADLINE_S

ARRAYS = {
    "plain": np.arange(12.0).reshape(3, 4),
    "column_major": np.asfortranarray(np.arange(12).reshape(3, 4)),
    "strided": np.arange(24)[::2],
    "empty": np.empty((0, 3)),
    "scalar": np.array(3.5),
    "flags": np.array([True, False]),
    "records": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "words": np.array(["ab", "c"]),
    "objects": np.array([{"a": 1}, None], dtype=object),
}
TENSORS = {
    "plain": torch.arange(6.0).reshape(2, 3),
    "transposed": torch.arange(6).reshape(2, 3).T,
    "expanded": torch.tensor(3.0).expand(4),
    "bfloat16": torch.randn(3, 2).bfloat16(),
    "scalar_bfloat16": torch.tensor(1.5, dtype=torch.bfloat16),
    "empty": torch.empty(0, 2),
    "complex": torch.randn(3, dtype=torch.complex64),
    "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
    "flags": torch.tensor([True, False]),
    "trained": torch.ones(2, requires_grad=True),
}


def round_trip(value):
    packed = pack(value)
    return unpack(packed.head, writable_copies(packed.buffers))


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_arrive_unchanged(name):
    received = round_trip(ARRAYS[name])
    assert received.dtype == ARRAYS[name].dtype
    assert received.flags.writeable
    np.testing.assert_array_equal(received, ARRAYS[name])


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_arrive_unchanged(name):
    received = round_trip(TENSORS[name])
    assert (received.dtype, received.requires_grad) == (TENSORS[name].dtype, TENSORS[name].requires_grad)
    assert torch.equal(received, TENSORS[name])


def test_tensordicts_arrive_unchanged():
    data = TensorDict({"a": torch.ones(3, 2), "nested": {"b": torch.arange(3)}}, [3], names=["time"])
    received = round_trip(data)
    assert (received == data).all()
    assert (received.names, received.batch_size) == (["time"], data.batch_size)


def test_tensors_that_lie_in_files_travel_as_their_numbers(tmp_path):
    for where in (None, tmp_path):
        data = TensorDict({"x": torch.arange(9)}, 9).memmap(where)
        received = round_trip(data[2:5]["x"])
        assert type(received) is torch.Tensor
        assert received.tolist() == [2, 3, 4]
        received.zero_()
        assert data["x"].tolist() == list(range(9))


def test_large_arrays_are_not_in_the_head():
    arrays = [np.ones(100_000), np.ones((100, 1000)).T, np.ones((100, 2000))[:, ::2]]
    tensors = [torch.ones(100_000), torch.ones(100, 2000)[:, ::2]]
    packed = pack((arrays, tensors))
    assert packed.size == 100_000 * (8 * 3 + 4 * 2)
    assert len(packed.head) < 1000


class Picky(Exception):
    def __init__(self, first, *, second):
        super().__init__(f"{first} and {second}")


class Hostile(Exception):
    def __reduce__(self):
        raise RuntimeError("not to be copied")


def sent(error):
    try:
        raise error
    except type(error) as raised:
        return deserialize_error(serialize_error(raised))


@pytest.mark.parametrize(
    "error",
    [ValueError("a", 1), OSError(2, "none", "file"), WorkerLate("late", workers=(1, 2), deadline=3.0)],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_arrives_with_its_type_and_attributes(error):
    received = sent(error)
    assert type(received) is type(error)
    assert received.args == error.args
    assert vars(received) == {**vars(error), "__notes__": received.__notes__}


def test_its_note_has_its_cause_and_traceback():
    error = ValueError("second")
    error.add_note("while testing")
    error.__cause__ = KeyError("first")
    (note,) = sent(error).__notes__
    assert note.startswith("while testing\nremote traceback:\nKeyError: 'first'")
    assert "in sent" in note
    assert "ValueError: second" in note


@pytest.mark.parametrize("error", [Picky("one", second="two"), Hostile("one and two")], ids=["picky", "hostile"])
def test_an_exception_that_cannot_be_rebuilt_is_described(error):
    received = sent(error)
    assert type(received) is RemoteFailure
    assert type(error).__name__ in received.type_name
    assert "one and two" in str(received)
    assert "in sent" in received.traceback


def ticket(index=0):
    return Ticket(Name(index, 0), "method")


def test_an_interrupt_that_the_system_gives_to_another_thread_ends_a_wait():
    waiting = threading.Event()

    def interrupt():
        assert waiting.wait(DEADLINE_S)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            TicketMonitor().wait([ticket()], None, waiting.set)
