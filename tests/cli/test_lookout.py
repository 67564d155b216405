"""What hangs in this process is told with its line, and ends when it is asked to."""

import signal
import threading
from contextlib import contextmanager

import pytest
from cli_toys import TINY

from swath.cli import lookout
from swath.cli.lookout import LOOKS, Lookout
from swath.nearby import near
from swath.rollout.hosts.sources import Source, make_env
from swath.workers.outcome import Value
from swath.workers.tickets import Board, Name, Ticket

PATIENCE = 30


class Door:
    """An env that is built when the door opens."""

    def __init__(self):
        self.opens, self.reached = threading.Event(), threading.Semaphore(0)

    def __call__(self):
        self.pass_through()
        raise ZeroDivisionError

    def pass_through(self):
        self.reached.release()
        assert self.opens.wait(PATIENCE)


@contextmanager
def building(*doors):
    """Within, a thread builds envs behind these doors, one after another."""

    def build():
        for door in doors:
            with pytest.raises(ZeroDivisionError):
                make_env(Source(door))

    thread = threading.Thread(target=build)
    thread.start()
    assert doors[0].reached.acquire(timeout=PATIENCE)
    try:
        yield
    finally:
        for door in doors:
            door.opens.set()
        thread.join()


def looking(said):
    return Lookout("maze:Maze", said.append)


def test_what_is_the_same_call_for_thirty_looks_is_told_once_with_the_users_line():
    said, door = [], Door()
    with building(door):
        out = looking(said)
        for _ in range(LOOKS - 1):
            out.look()
        assert said == []
        for _ in range(LOOKS + 1):
            out.look()
    (told,) = said
    assert told.startswith(f"__call__ has not come back in 30 s: it is in pass_through, {near(__file__)}:")
    assert told.endswith("; `swath doctor maze:Maze` looks at the env alone")


def test_a_call_that_comes_back_meanwhile_has_not_hung():
    said, doors = [], [Door(), Door()]
    with building(*doors):
        out = looking(said)
        for _ in range(LOOKS - 1):
            out.look()
        doors[0].opens.set()
        assert doors[1].reached.acquire(timeout=PATIENCE)
        for _ in range(LOOKS - 1):
            out.look()
    assert said == []


class Asked:
    def stats(self, workers):
        assert workers == "per_worker"
        return {"worker_0/busy": False, "worker_1/busy": True, "worker_1/frames": 3}


@pytest.mark.parametrize(("collector", "words"), [(Asked(), ": waiting for worker 1"), (None, "")])
def test_workers_that_have_not_answered_for_thirty_looks_are_named_once(collector, words):
    said, board, ticket = [], Board(), Ticket(Name(1, 0), "collect")
    made, out = threading.Event(), []

    def wait():
        out.append(looking(said))
        if collector is not None:
            out[0].know(collector)
        made.set()
        board.wait([ticket], PATIENCE)

    thread = threading.Thread(target=wait)
    thread.start()
    assert made.wait(PATIENCE)
    while not any(call.is_of_workers for call in out[0]._calls.values()):
        out[0].look()
    for _ in range(2 * LOOKS):
        out[0].look()
    board.settle(ticket, Value(None))
    thread.join()
    assert said == [f"no worker has answered in 30 s{words}; `swath doctor maze:Maze` looks at the env alone"]


ENDS = {signal.SIGINT: 130, signal.SIGTERM: 143}


def hanging(scripted, step, number):
    """Let the env hang in this step; the signal comes just before."""

    def on_step(steps):
        if steps == step:
            signal.raise_signal(number)
            threading.Event().wait()

    scripted.on_step = staticmethod(on_step)


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(lookout, "EVERY_S", 0.02)


COMMANDS = {
    "train": ("train", "Scripted-v0", *TINY, "--no-video", "--eval-backend", "none"),
    "collect": ("collect", "Scripted-v0", "--frames", "100", "--out", "data"),
}


@pytest.mark.usefixtures("hasty", "usual_sigterm")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("number", ENDS)
def test_one_signal_ends_a_run_whose_env_hangs(number, command, swath, scripted):
    hanging(scripted, 40, number)
    code, _, err = swath(*COMMANDS[command])
    assert code == ENDS[number]
    told, end = err[-2:]  # on a slow machine something else may have been told before
    assert told.startswith("swath: step has not come back in 30 s: it is in on_step, ")
    assert told.endswith("; `swath doctor Scripted-v0` looks at the env alone")
    assert "test_lookout.py:" in told
    assert end == "swath: interrupted"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.usefixtures("hasty", "usual_sigterm")
def test_an_env_that_hangs_in_a_measurement_is_told(swath, scripted):
    def on_step(steps):
        if steps == 40:
            wait_for_lookout()
            signal.raise_signal(signal.SIGTERM)

    def wait_for_lookout():
        assert told.wait(PATIENCE)

    told = threading.Event()
    say = lookout._complain

    def tell(self, what, text):
        say(text)
        if text.startswith("step "):
            told.set()

    scripted.on_step = staticmethod(on_step)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Lookout, "_tell", tell)
        code, out, err = swath("bench", "Scripted-v0", "--backends", "inline", "--envs", "1", "--rounds", "1")
    assert (code, out[-1]) == (143, "interrupted before anything was measured")
    words = "swath: step has not come back in 30 s: it is in wait_for_lookout, "
    assert any(line.startswith(words) for line in err)
