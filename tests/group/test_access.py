"""Order among threads, without a collector."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from interrupts import interrupted_at
from swath.errors import Closed
from swath.group import local
from swath.group.local import Access
from toys import DEADLINE_S

OURS = {local.__file__}
PATIENCE_S = 0.01
"""How long an interrupted thread waits for a thread that may need its lock."""


def pass_through(access, deadline=DEADLINE_S):
    with access.control(deadline):
        pass


def collect(access):
    with access.collecting():
        pass


@pytest.fixture
def access():
    return Access("Thing")


@pytest.fixture
def start():
    """Return a function that starts another one in a thread and returns its future."""
    with ThreadPoolExecutor() as threads:
        yield threads.submit


@pytest.fixture
def start_waiting(start):
    """Return a function that starts another one in a thread, and returns its future when that thread waits."""

    def start_waiting(function, *args):
        waits = threading.Event()

        def watch(frame, event, arg):
            if frame.f_code is threading.Condition.wait_for.__code__:
                waits.set()

        def run():
            sys.settrace(watch)
            try:
                function(*args)
            finally:
                sys.settrace(None)

        future = start(run)
        assert waits.wait(DEADLINE_S), "it does not wait"
        return future

    return start_waiting


@pytest.fixture
def release(access, start):
    """Return a function that ends a fragment in another thread."""
    inside, released = threading.Event(), threading.Event()

    def collect():
        with access.collecting():
            inside.set()
            assert released.wait(DEADLINE_S)

    collecting = start(collect)
    assert inside.wait(DEADLINE_S)
    yield lambda: (released.set(), collecting.result(DEADLINE_S))
    released.set()


def test_what_is_left_at_any_moment_of_a_fragment_is_done(access, start):
    """Check also the last moment, in which the turn ends and the other thread relies on its owner."""
    at, done, leaving, came = 0, [], [], True

    def leave():
        leaving[:] = [start(access.run_soon, lambda: done.append(at))]
        wait(leaving, PATIENCE_S)  # it is there, or needs a lock that the interrupted thread has

    while came:
        at += 1
        _, came = interrupted_at(at, lambda: collect(access), OURS, by=leave)
        if came:
            leaving[0].result(DEADLINE_S)
            assert done == [at]
            done.clear()
    assert at > 100


def test_ctrl_c_at_any_moment_of_a_fragment_leaves_access_free(access, start):
    at, came = 0, True
    while came:
        at += 1
        _, came = interrupted_at(at, lambda: collect(access), OURS, after_calls=True)
        start(pass_through, access).result(DEADLINE_S)
    assert at > 10


def test_a_control_call_that_waits_comes_before_the_next_fragment(access, start, start_waiting, release):
    """Check it while the collecting thread releases and takes the lock without a pause."""
    order, stop = [], threading.Event()

    def go_on():
        while not stop.is_set():
            with access.collecting():
                order.append("fragment")

    def control():
        with access.control():
            order.append("control")
            stop.set()

    calling, collecting = start_waiting(control), start_waiting(go_on)
    release()
    for each in (calling, collecting):
        each.result(DEADLINE_S)
    assert order[0] == "control"


def test_waiting_calls_raise_closed(access, start_waiting, release):
    waiting = start_waiting(pass_through, access)
    closing = start_waiting(access.close, DEADLINE_S, lambda: None)
    release()
    assert isinstance(waiting.exception(DEADLINE_S), Closed)
    closing.result(DEADLINE_S)
