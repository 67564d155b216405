"""Order among threads, without a collector."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from swath.errors import Closed
from swath.group.local import Gate


def pass_through(gate, deadline=0.01):
    with gate.control(deadline):
        pass


@pytest.fixture
def gate():
    return Gate("Thing")


@pytest.fixture
def start():
    """Begins a function in another thread; what becomes of it."""
    with ThreadPoolExecutor() as threads:
        yield threads.submit


@pytest.fixture
def release(gate, start):
    """Ends a fragment in another thread that lasts until then."""
    inside, released = threading.Event(), threading.Event()

    def collect():
        with gate.collecting():
            inside.set()
            assert released.wait(60)

    collecting = start(collect)
    assert inside.wait(60)
    return lambda: (released.set(), collecting.result(60))


def test_what_is_left_in_the_last_moment_is_done_all_the_same(gate, start):
    """Somebody comes while the turn is being given back, and leaves it to whoever had the turn."""

    class Changed(threading.Condition):
        def __enter__(self):
            entered.append(True)
            if len(entered) == 2:
                start(gate.soon, lambda: done.append(1)).result(60)
                assert done == []
            return super().__enter__()

    done, entered, gate._changed = [], [], Changed()
    with gate.collecting():
        pass
    assert done == [1]


def test_ctrl_c_in_the_moment_in_which_a_turn_is_taken_leaves_the_gate_free(gate, start):
    class Interrupted(threading.Condition):
        def wait_for(self, *args):
            assert super().wait_for(*args)
            raise KeyboardInterrupt

    gate._changed = Interrupted()
    with pytest.raises(KeyboardInterrupt), gate.collecting():
        pass
    gate._changed = threading.Condition()
    start(pass_through, gate, 60.0).result(60)


def test_a_control_call_that_waits_comes_before_the_next_fragment(gate, start, release):
    """The thread that collects releases and takes the lock without a pause; the waiting call must get in between."""
    begin, order, stop = threading.Event(), [], threading.Event()

    def collect():
        begin.wait(60)
        while not stop.is_set():
            with gate.collecting():
                order.append("fragment")

    def control():
        with gate.control():
            order.append("control")
            stop.set()

    calling = start(control)
    while len(gate._threads) < 2:
        pass
    collecting = start(collect)
    begin.set()
    release()
    for each in (calling, collecting):
        each.result(60)
    assert order[0] == "control"


def test_waiting_calls_hear_of_the_closing(gate, start, release):
    waiting = start(pass_through, gate, 60.0)
    while len(gate._threads) < 2:
        pass
    closing = start(gate.close, 10, lambda: None)
    while not gate.halted:
        pass
    release()
    assert isinstance(waiting.exception(60), Closed)
    closing.result(60)
