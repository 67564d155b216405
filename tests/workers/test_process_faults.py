"""Worker processes that end, hang or lie, and fork servers that die."""

import multiprocessing
import os
import random
import resource
import select
import signal
import subprocess
import sys
import threading
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from interrupts import interrupted_at
from swath.errors import Closed, PlacementFailed, WorkerLost
from swath.workers.base import Job
from swath.workers.process import backend as backend_module
from swath.workers.process import memory
from swath.workers.process.backend import ProcessBackend
from swath.workers.tickets import Name
from toys import DEADLINE_S, LARGE, ToyWorker, ask, error_of, exists, job, result, result_of_end


@pytest.fixture
def backend(fork_server):
    backend = ProcessBackend()
    yield backend
    backend.close()


@pytest.fixture
def worker(backend):
    return backend.spawn(job())


def start_another():
    """Start a process in a worker that would outlive it, and return its pid."""
    return subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]).pid


def test_answers_that_were_sent_before_a_death_are_kept(backend, worker):
    calls = [backend.call(worker, "echo", np.full(LARGE, number)) for number in range(3)]
    death = backend.call(worker, "exit", 1)
    assert isinstance(error_of(backend, death), WorkerLost)
    assert [int(call.value[-1]) for call in calls] == [0, 1, 2]


def test_processes_that_a_worker_has_started_end_with_it(backend):
    for end in (backend.kill, lambda worker: backend.call(worker, "exit", 0)):
        worker = backend.spawn(job())
        child = ask(backend, worker, "run", start_another)
        assert exists(child)
        end(worker)
        result_of_end(backend, worker)
        await_end(child)


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
            return os.getxattr, ("/missing/file", "user.none")

    with pytest.raises(FileNotFoundError):
        ask(backend, worker, "run", Deceptive)
    assert ask(backend, worker, "add", 1) == 1


def test_a_build_that_cannot_be_pickled_is_a_type_error_with_a_remedy(backend):
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"build=.* cannot be sent to a process: .*lock.*; make what it refers to in"):
        backend.spawn(job(lambda: ToyWorker(lock)))


@pytest.fixture
def few_descriptors():
    """Return a function that leaves a process, by default this one, room for so many more file descriptors."""
    limits_before = []

    def leave(n, pid=0):
        used = {int(fd.name) for fd in Path(f"/proc/{pid or 'self'}/fd").iterdir()}
        limit = next(limit for limit in count(n) if limit - sum(fd < limit for fd in used) == n)
        limits_before.append((pid, resource.prlimit(pid, resource.RLIMIT_NOFILE)))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, limits_before[0][1][1]))

    yield leave
    for pid, limits in reversed(limits_before):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def test_a_worker_without_file_descriptors_is_refused_with_a_remedy(backend, few_descriptors):
    few_descriptors(2)
    with pytest.raises(PlacementFailed, match=r"file descriptors.*RLIMIT_NOFILE=\d+.*ulimit -n"):
        backend.spawn(job())


def test_a_fork_server_without_file_descriptors_says_so_and_serves_on(backend, worker, few_descriptors):
    few_descriptors(2, ask(backend, worker, "run", os.getppid))
    refused = backend.spawn(job(index=1))
    assert "no file descriptors left (RLIMIT_NOFILE=" in str(result_of_end(backend, refused))
    assert ask(backend, worker, "add", 1) == 1


@pytest.mark.parametrize("end", [ProcessBackend.kill, lambda backend, worker: backend.close()], ids=["kill", "close"])
def test_a_stopped_fork_server_does_not_keep_workers_alive(backend, end, monkeypatch):
    monkeypatch.setattr(backend_module, "_SEND_TIMEOUT_S", 0.5)  # read when a worker begins
    worker = backend.spawn(job())
    server, pid = ask(backend, worker, "run", os.getppid), ask(backend, worker, "pid")
    os.kill(server, signal.SIGSTOP)
    try:
        end(backend, worker)
        assert isinstance(result_of_end(backend, worker), WorkerLost)
    finally:
        os.kill(server, signal.SIGCONT)
    await_end(pid)


def test_shared_values_are_gone_with_the_backend(backend, worker):
    shared = backend.share({"array": np.ones(LARGE)})
    backend.close()
    for use in (shared.open, lambda: backend.share(1), lambda: backend.shared_counters(1)):
        with pytest.raises(Closed):
            use()


def await_end(pid):
    """Wait for a process that is not our child."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with os.fdopen(fd) as ended:
        assert select.select([ended], [], [], DEADLINE_S)[0], f"process {pid} has not ended"


def test_an_interrupt_anywhere_in_a_call_leaves_the_worker_in_step(backend):
    """Interrupt after any Python call in it: later calls are answered, with shared values."""
    worker, at = backend.spawn(job()), 0
    shared = [backend.share({"array": np.full(LARGE, number)}) for number in range(2)]
    files = {backend_module.__file__, memory.__file__}
    while True:
        at += 1
        _, came = interrupted_at(at, partial(backend.call, worker, "read", shared[0]), files, after_calls=True)
        if not came:
            break
        assert ask(backend, worker, "read", shared[1]) == (LARGE, False)
        assert ask(backend, worker, "read", shared[0]) == (0.0, False)
        assert ask(backend, worker, "echo", at) == at
    assert at > 10


def test_kept_bodies_stay_unchanged_and_memory_of_others_is_reused(backend, worker):
    draws, kept = random.Random(5), {}
    for number in range(60):
        parcel = ask(backend, worker, "parcel", number, draws.choice((1, 5_000, LARGE)))
        kept[number] = parcel.open()["array"]
        if draws.random() < 0.8:
            del kept[draws.choice(sorted(kept))]
        assert all(set(np.unique(array)) == {number} for number, array in kept.items())
    assert ask(backend, worker, "run", lambda: Path("/proc/self/maps").read_text().count("memfd:")) <= 60


# ---- the caller's directory, paths, variables and streams; one fork server


def run_in_new_worker(backend, function, **options):
    """Return the function's result in a new worker."""
    worker = backend.spawn(Job(ToyWorker, Name(0, 0), **options))
    try:
        return ask(backend, worker, "run", function)
    finally:
        backend.kill(worker)


def test_directory_paths_variables_and_arguments_are_the_callers_of_now(backend, monkeypatch, tmp_path):
    assert run_in_new_worker(backend, lambda: os.environ.get("SWATH_TOLD")) is None  # the fork server is up
    (tmp_path / "only_here.py").write_text("answer = 42")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SWATH_TOLD", "yes")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(sys, "argv", ["program", "--flag"])

    def look():
        import only_here

        return os.environ["SWATH_TOLD"], "HOME" in os.environ, Path.cwd(), sys.argv, only_here.answer

    assert run_in_new_worker(backend, look) == ("yes", False, tmp_path, ["program", "--flag"], 42)


def test_objects_of_the_callers_manager_can_be_used(backend):
    with multiprocessing.get_context("spawn").Manager() as manager:
        shared_list = manager.list()
        run_in_new_worker(backend, lambda: shared_list.append("from the worker"))
        assert list(shared_list) == ["from the worker"]


def test_a_module_that_cannot_be_preloaded_fails_only_where_it_is_needed(tmp_path, monkeypatch):
    (tmp_path / "broken_early.py").write_text("raise OSError('no licence')")
    monkeypatch.syspath_prepend(tmp_path)

    def use():
        import broken_early  # noqa: F401

    backend = ProcessBackend(preload=["broken_early", "torch"])
    worker = backend.spawn(job())
    with pytest.raises(OSError, match="no licence"):
        ask(backend, worker, "run", use)
    backend.close()


def test_workers_write_where_their_driver_writes_when_they_begin(backend, capfd):
    worker = backend.spawn(job())
    ask(backend, worker, "run", print, "to out")
    ask(backend, worker, "run", lambda: sys.stderr.write("to err\n"))
    assert capfd.readouterr() == ("to out\n", "to err\n")
    backend.call(worker, "fail", SystemExit("last words"))
    result_of_end(backend, worker)
    assert capfd.readouterr() == ("", "last words\n")
