"""What holds of workers that have processes of their own."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from swath.errors import WorkerLost
from swath.testing.backend.asking import (
    Place,
    ask,
    error_of,
    exists,
    job,
    lost_by_asking,
    result_of_end,
)
from swath.testing.toy_worker import Gate, ToyWorker
from swath.workers.base import Backend, Job
from swath.workers.tickets import Name


def in_main_thread() -> bool:
    """Whether this is called in the main thread."""
    return threading.current_thread() is threading.main_thread()


class MadeInThread(ToyWorker):
    """Notes in which thread it is built."""

    def __init__(self) -> None:
        super().__init__()
        self._built = in_main_thread()

    def threads(self) -> Any:
        """Whether it was built, and is called, in the main thread."""
        return self._built, in_main_thread()


class OwnProcesses(Place):
    """Tests of processes."""

    def test_a_process_that_is_killed_from_outside_is_lost(self, backend: Backend, gate: Gate) -> None:
        """Busy or idle; the exit says how."""
        self._need_processes()
        for busy in (True, False):
            worker = backend.spawn(job())
            pid = ask(backend, worker, "pid")
            if busy:
                backend.call(worker, "wait_at", gate)
                gate.await_arrival()
            os.kill(pid, signal.SIGKILL)
            lost = result_of_end(backend, worker) if self.sees_idle_deaths else lost_by_asking(backend, worker)
            assert isinstance(lost, WorkerLost)
            assert not exists(pid, self.lingers_s)

    def test_a_process_that_exits_says_its_code(self, backend: Backend) -> None:
        """`os._exit` in the midst of a method."""
        self._need_processes()
        worker = backend.spawn(job())
        lost = error_of(backend, backend.call(worker, "exit", 3))
        assert isinstance(lost, WorkerLost)
        assert lost.exit == 3 if self.tells_exit_codes else lost.exit

    def test_a_process_that_is_stopped_can_be_killed(self, backend: Backend) -> None:
        """It cannot be asked to go."""
        self._need_processes()
        worker = backend.spawn(job())
        pid = ask(backend, worker, "pid")
        os.kill(pid, signal.SIGSTOP)
        call = backend.call(worker, "add", 1)
        backend.kill(worker)
        assert isinstance(error_of(backend, call), WorkerLost)
        assert not exists(pid, self.lingers_s)

    def test_a_process_that_is_terminated_is_lost(self, backend: Backend, gate: Gate) -> None:
        """At once, busy or idle."""
        self._need_processes()
        for busy in (True, False):
            worker = backend.spawn(job())
            pid = ask(backend, worker, "pid")
            if busy:
                backend.call(worker, "wait_at", gate)
                gate.await_arrival()
            os.kill(pid, signal.SIGTERM)
            assert isinstance(lost_by_asking(backend, worker), WorkerLost)
            assert not exists(pid, self.lingers_s)

    def test_a_worker_runs_in_the_main_thread_of_its_process(self, backend: Backend) -> None:
        """Its object is built there, and its methods are called there, so that they may set handlers of signals."""
        self._need_processes()
        worker = backend.spawn(job(MadeInThread))
        assert ask(backend, worker, "threads") == (True, True)
        assert ask(backend, worker, "run", signal.signal, signal.SIGUSR1, signal.SIG_IGN) == signal.SIG_DFL

    def test_interrupts_of_the_keyboard_are_not_for_workers(self, backend: Backend) -> None:
        """They belong to the driver."""
        self._need_processes()
        worker = backend.spawn(job())
        os.kill(ask(backend, worker, "pid"), signal.SIGINT)
        assert ask(backend, worker, "add", 1) == 1

    def test_processes_draw_different_numbers(self, backend: Backend) -> None:
        """From all three generators that a process has."""
        self._need_processes()
        draws = [ask(backend, backend.spawn(job(index=index)), "draw") for index in range(3)]
        for numbers in zip(*draws, strict=True):
            assert len(set(numbers)) == 3

    def test_processes_have_as_many_threads_as_they_were_given(self, backend: Backend) -> None:
        """Of torch."""
        self._need_processes()
        for threads in (1, 2):
            worker = backend.spawn(Job(ToyWorker, Name(0, 0), threads=threads))
            assert ask(backend, worker, "threads") == threads

    def _need_processes(self) -> None:
        if not self.own_process:
            pytest.skip("workers here have no processes of their own")
