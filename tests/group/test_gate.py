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
    """Somebody comes while the turn is being given back, and leaves it to whoever had the turn."""

    class Changed(threading.Condition):
        def __enter__(self):
            entered.append(True)
            if len(entered) == 2:
                Thread(lambda: gate.soon(lambda: done.append(1))).join()
                assert done == []
            return super().__enter__()

    done, entered, gate._changed = [], [], Changed()
    with gate.collecting():
        pass
    assert done == [1]


def test_ctrl_c_in_the_moment_in_which_a_turn_is_taken_leaves_the_gate_free(gate):
    class Interrupted(threading.Condition):
        def wait_for(self, *args):
            assert super().wait_for(*args)
            raise KeyboardInterrupt

    gate._changed = Interrupted()
    with pytest.raises(KeyboardInterrupt), gate.collecting():
        pass
    gate._changed = threading.Condition()
    assert Thread(lambda: pass_through(gate, 60.0)).join().error is None


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
    while len(gate._threads) < 2:
        pass
    collecting = Thread(collect)
    held.release()
    calling.join()
    collecting.join()
    assert order[0] == "control"


def test_waiting_calls_hear_of_the_closing(gate):
    held = Held(gate)
    waiting = Thread(lambda: pass_through(gate, 60.0))
    while len(gate._threads) < 2:
        pass
    closing = Thread(lambda: gate.close(10, lambda: None))
    while not gate.halted:
        pass
    held.release()
    assert isinstance(waiting.join().error, Closed)
    assert closing.join().error is None
