"""Order among threads, without a collector."""

import threading

import pytest

from swath.errors import Closed
from swath.group.local import Gate


class Thread:
    def __init__(self, function):
        self.error, self._function = None, function
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self._function()
        except BaseException as error:
            self.error = error

    def join(self):
        self._thread.join(60)
        assert not self._thread.is_alive(), "it hangs"
        return self


def pass_through(gate, deadline=0.01):
    with gate.control(deadline):
        pass


@pytest.fixture
def gate():
    return Gate("Thing")


class Held:
    """A fragment in another thread that lasts until it is released."""

    def __init__(self, gate):
        self.inside, self.released = threading.Event(), threading.Event()
        self._gate = gate
        self.thread = Thread(self._run)
        assert self.inside.wait(60)

    def _run(self):
        with self._gate.collecting():
            self.inside.set()
            assert self.released.wait(60)

    def release(self):
        self.released.set()
        self.thread.join()


def test_what_is_left_in_the_last_moment_is_done_all_the_same(gate):
    class Lock:
        """Somebody comes between the last look and the release."""

        def __init__(self, lock):
            self.lock, self.come = lock, [lambda: gate.soon(lambda: done.append(1))]

        def acquire(self, **how):
            return self.lock.acquire(**how)

        def release(self):
            if self.come:
                Thread(self.come.pop()).join()
                assert done == []
            self.lock.release()

    done, gate._lock = [], Lock(gate._lock)
    with gate.collecting():
        pass
    assert done == [1]


def test_a_control_call_that_waits_comes_before_the_next_fragment(gate):
    """The thread that collects releases and takes the lock without a pause; the waiting call must get in between."""
    held, order, stop = Held(gate), [], threading.Event()

    def collect():
        held.released.wait(60)
        while not stop.is_set():
            with gate.collecting():
                order.append("fragment")

    def control():
        with gate.control():
            order.append("control")
            stop.set()

    calling = Thread(control)
    while not gate._turnstile.locked():
        pass
    collecting = Thread(collect)
    held.release()
    calling.join()
    collecting.join()
    assert order[0] == "control"


def test_waiting_calls_hear_of_the_closing(gate):
    held = Held(gate)
    waiting = Thread(lambda: pass_through(gate, 60.0))
    while not gate._turnstile.locked():
        pass
    closing = Thread(lambda: gate.close(10, lambda: None))
    while not gate.halted:
        pass
    held.release()
    assert isinstance(waiting.join().error, Closed)
    assert closing.join().error is None
