"""Worker processes that end, hang or lie, and nurseries that die."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from swath.errors import WorkerLost
from swath.testing.backend.asking import LARGE, ask, descriptors, error_of, exists, job, result, result_of_end
from swath.testing.toy_worker import ToyWorker
from swath.workers.outcome import Error
from swath.workers.process.backend import ProcessBackend


@pytest.fixture
def backend(warm_processes):
    backend = ProcessBackend()
    yield backend
    backend.close()


@pytest.fixture
def worker(backend):
    return backend.spawn(job())


def wire_of_worker():
    """In a worker: the descriptor of its wire."""
    sockets = [int(fd.name) for fd in Path("/proc/self/fd").iterdir() if "socket:" in str(fd.resolve())]
    assert len(sockets) == 1, f"a worker holds the sockets {sockets}; one is its own"
    return sockets[0]


def nursery_of(backend, worker):
    return ask(backend, worker, "run", os.getppid)


def start_another():
    """In a worker: a process that would outlive it."""
    return subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]).pid


def test_a_worker_holds_no_socket_but_its_wire(backend, worker):
    others = [backend.spawn(job(index=index)) for index in range(1, 4)]
    for each in (worker, *others):
        assert ask(backend, each, "run", wire_of_worker) > 2


def test_a_worker_that_closes_its_wire_is_lost(backend, worker):
    pid = ask(backend, worker, "pid")
    lost = error_of(backend, backend.call(worker, "run", lambda: os.close(wire_of_worker())))
    assert isinstance(lost, WorkerLost)
    assert not exists(pid)


def test_a_worker_that_sends_rubbish_is_killed_and_says_so(backend, worker):
    def babble():
        with socket.socket(fileno=os.dup(wire_of_worker())) as sock:
            sock.sendall(b"x" * 100)
        signal.pause()

    lost = error_of(backend, backend.call(worker, "run", babble))
    assert isinstance(lost, WorkerLost)
    assert "cannot be read" in str(lost)
    assert lost.exit == -signal.SIGKILL


@pytest.mark.parametrize("code", [0, 7])
def test_exit_codes_are_told(backend, code):
    worker = backend.spawn(job())
    lost = error_of(backend, backend.call(worker, "fail", SystemExit(code)))
    assert lost.exit == code
    assert str(lost) == f"worker 0 (life 0) ended with exit code {code}"


def test_a_signal_is_told_by_its_name(backend, worker):
    lost = error_of(backend, backend.call(worker, "run", signal.raise_signal, signal.SIGTERM))
    assert lost.exit == -signal.SIGTERM
    assert "SIGTERM" in str(lost)


def test_answers_that_were_sent_before_a_death_are_kept(backend, worker):
    calls = [backend.call(worker, "echo", np.full(LARGE, number)) for number in range(3)]
    death = backend.call(worker, "exit", 1)
    assert isinstance(error_of(backend, death), WorkerLost)
    assert [int(call.value[-1]) for call in calls] == [0, 1, 2]


def test_a_call_that_is_answered_with_a_loss_finds_the_life_ended(backend, worker, monkeypatch):
    board, found = backend._processes.board, []
    settle = board.settle

    def noting(ticket, outcome):
        if ticket is not worker.ended and isinstance(outcome, Error):
            found.append(worker.ended.done)
        return settle(ticket, outcome)

    monkeypatch.setattr(board, "settle", noting)
    error_of(backend, backend.call(worker, "exit", 1))
    error_of(backend, backend.call(worker, "add", 1))
    assert found == [True, True]


def test_what_a_worker_has_started_ends_with_it(backend):
    for end in (backend.kill, lambda worker: backend.call(worker, "exit", 0)):
        worker = backend.spawn(job())
        child = ask(backend, worker, "run", start_another)
        assert exists(child)
        end(worker)
        result_of_end(backend, worker)
        await_end(child)


def test_the_death_of_a_worker_shows_although_another_process_has_its_wire(backend, worker, tmp_path):
    left = tmp_path / "left"

    def fork_and_exit():
        if os.fork() == 0:
            os.setsid()  # it is not killed with the worker's group
            left.write_text(str(os.getpid()))
            signal.pause()
        while not (left.exists() and left.read_text()):
            os.sched_yield()
        os._exit(5)

    lost = error_of(backend, backend.call(worker, "run", fork_and_exit))
    os.kill(int(left.read_text()), signal.SIGKILL)
    assert lost.exit == 5


def test_calls_to_a_stopped_worker_return_at_once_and_are_answered_when_it_goes_on(backend, worker):
    pid = ask(backend, worker, "pid")
    os.kill(pid, signal.SIGSTOP)
    calls = [backend.call(worker, "echo", bytes([number]) * 60_000) for number in range(100)]
    large = backend.call(worker, "echo", np.ones(LARGE))
    assert not any(call.done for call in calls)
    os.kill(pid, signal.SIGCONT)
    assert [result(backend, call) for call in calls] == [bytes([number]) * 60_000 for number in range(100)]
    assert result(backend, large).sum() == LARGE


def test_an_answer_that_cannot_be_rebuilt_here_is_an_error_and_the_worker_lives(backend, worker):
    class Deceptive:
        def __reduce__(self):
            return os.getxattr, ("/no/such/file", "user.none")

    with pytest.raises(FileNotFoundError):
        ask(backend, worker, "run", Deceptive)
    assert ask(backend, worker, "add", 1) == 1


def test_an_argument_that_cannot_be_rebuilt_there_is_an_error_and_the_worker_lives(backend, worker):
    class Deceptive:
        def __reduce__(self):
            return os.getxattr, ("/no/such/file", "user.none")

    with pytest.raises(FileNotFoundError):
        ask(backend, worker, "echo", Deceptive())
    assert ask(backend, worker, "add", 1) == 1


def test_a_build_that_cannot_be_pickled_is_a_type_error_that_says_what_to_do(backend):
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"build=.* cannot be sent to a process: .*lock.*; make what it refers to in"):
        backend.spawn(job(lambda: ToyWorker(lock)))


def test_a_stopped_nursery_does_not_keep_workers_alive(backend):
    worker = backend.spawn(job())
    nursery, pid = nursery_of(backend, worker), ask(backend, worker, "pid")
    os.kill(nursery, signal.SIGSTOP)
    try:
        backend.kill(worker)
        assert "not seen to end" in str(result_of_end(backend, worker))
    finally:
        os.kill(nursery, signal.SIGCONT)
    await_end(pid)


def test_a_backend_is_closed_although_the_nursery_is_stopped(backend, worker):
    nursery, pid = nursery_of(backend, worker), ask(backend, worker, "pid")
    os.kill(nursery, signal.SIGSTOP)
    try:
        backend.close()
        result_of_end(backend, worker)
    finally:
        os.kill(nursery, signal.SIGCONT)
    await_end(pid)


HELD = {}


def rebuilt_elsewhere():
    class Answer:
        def __reduce__(self):
            return drop, ()

    return Answer()


def drop():
    HELD.clear()


def test_a_backend_that_its_own_thread_lets_go_of_ends_its_workers(warm_processes):
    HELD["backend"] = ProcessBackend()
    worker = HELD["backend"].spawn(job())
    board = HELD["backend"]._processes.board
    HELD["backend"].call(worker, "run", rebuilt_elsewhere)
    assert board.wait([worker.ended], 60.0) == [worker.ended]
    assert not HELD


def test_descriptors_do_not_add_up(backend, worker):
    def count():
        return descriptors(), ask(backend, worker, "run", descriptors)

    def use():
        for _ in range(5):
            parcel = ask(backend, worker, "parcel", 1, LARGE)
            parcel.open()
            parcel.close()
            shared = backend.share({"array": np.ones(LARGE)})
            ask(backend, worker, "read", shared)
            shared.release()
            ask(backend, worker, "echo", np.ones(LARGE))

    use()
    before = count()
    use()
    assert count() <= before


def test_many_values_for_a_worker_that_does_not_read_take_two_blocks(backend, worker):
    ask(backend, worker, "add", 1)
    before = descriptors()
    held = []
    for _ in range(20):
        if len(held) == 2:
            held.pop(0).release()
        held.append(backend.share({"array": np.ones(LARGE)}))
    per_block = 2 if sys.version_info < (3, 13) else 1
    assert descriptors() - before <= 3 * per_block
    for shared in held:
        shared.release()


def test_a_shared_value_travels_only_in_calls(backend):
    shared = backend.share({"array": np.ones(3)})
    with pytest.raises(TypeError, match="only as an argument of a call"):
        backend.spawn(job(partial(ToyWorker, shared)))


def test_a_released_value_is_not_sent(backend, worker):
    shared = backend.share({"array": np.ones(LARGE)})
    shared.release()
    with pytest.raises(ValueError, match="released; share it anew"):
        backend.call(worker, "read", shared)


def await_end(pid):
    """Wait for a process that is no child of ours."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with os.fdopen(fd) as ended:
        assert select.select([ended], [], [], 60.0)[0], f"process {pid} has not ended"
