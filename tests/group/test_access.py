"""Order among threads, without a collector."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from swath.errors import Closed
from swath.group.local import Access


def pass_through(access, deadline=0.01):
    with access.control(deadline):
        pass


@pytest.fixture
def access():
    return Access("Thing")


@pytest.fixture
def start():
    """Begins a function in another thread; what becomes of it."""
    with ThreadPoolExecutor() as threads:
        yield threads.submit


@pytest.fixture
def release(access, start):
    """Ends a fragment in another thread that lasts until then."""
    inside, released = threading.Event(), threading.Event()

    def collect():
        with access.collecting():
            inside.set()
            assert released.wait(60)

    collecting = start(collect)
    assert inside.wait(60)
    return lambda: (released.set(), collecting.result(60))


def test_what_is_left_in_the_last_moment_is_done_all_the_same(access, start):
    """Somebody comes while the turn is being given back, and leaves it to whoever had the turn."""

    class Changed(threading.Condition):
        def __enter__(self):
            entered.append(True)
            if len(entered) == 2:
                start(access.soon, lambda: done.append(1)).result(60)
                assert done == []
            return super().__enter__()

    done, entered, access._changed = [], [], Changed()
    with access.collecting():
        pass
    assert done == [1]


def test_ctrl_c_in_the_moment_in_which_a_turn_is_taken_leaves_access_free(access, start):
    class Interrupted(threading.Condition):
        def wait_for(self, *args):
            assert super().wait_for(*args)
            raise KeyboardInterrupt

    access._changed = Interrupted()
    with pytest.raises(KeyboardInterrupt), access.collecting():
        pass
    access._changed = threading.Condition()
    start(pass_through, access, 60.0).result(60)


def test_a_control_call_that_waits_comes_before_the_next_fragment(access, start, release):
    """The thread that collects releases and takes the lock without a pause; the waiting call must get in between."""
    begin, order, stop = threading.Event(), [], threading.Event()

    def collect():
        begin.wait(60)
        while not stop.is_set():
            with access.collecting():
                order.append("fragment")

    def control():
        with access.control():
            order.append("control")
            stop.set()

    calling = start(control)
    while len(access._threads) < 2:
        pass
    collecting = start(collect)
    begin.set()
    release()
    for each in (calling, collecting):
        each.result(60)
    assert order[0] == "control"


def test_waiting_calls_raise_closed(access, start, release):
    waiting = start(pass_through, access, 60.0)
    while len(access._threads) < 2:
        pass
    closing = start(access.close, 10, lambda: None)
    while not access.halted:
        pass
    release()
    assert isinstance(waiting.exception(60), Closed)
    closing.result(60)
