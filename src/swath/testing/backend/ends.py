"""How workers end: killed, or with their backend."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest

from swath.errors import Closed, WorkerLost
from swath.testing.backend.asking import (
    Place,
    ask,
    becomes,
    descriptors,
    error_of,
    exists,
    job,
    result,
    result_of_end,
    run_once,
)
from swath.testing.toy_worker import Gate, ToyWorker
from swath.workers.base import Backend
from swath.workers.tickets import Name


class Ends(Place):
    """Tests of ends."""

    def test_a_killed_worker_answers_all_that_is_open_and_all_that_follows(self, backend: Backend, gate: Gate) -> None:
        """With who it was; killing it again is fine; others live on."""
        killed, other = backend.spawn(job(index=3, life=2)), backend.spawn(job(index=4))
        result(backend, killed.ready)
        calls = [backend.call(killed, "wait_at", gate), backend.call(killed, "add", 1)]
        if self.concurrent:
            gate.await_arrival()
        backend.kill(killed)
        backend.kill(killed)
        calls.append(backend.call(killed, "add", 1))
        for ticket in (*calls, killed.ended):
            lost = error_of(backend, ticket)
            assert isinstance(lost, WorkerLost)
            assert (lost.worker, lost.life) == (3, 2)
            assert "worker 3 (life 2)" in str(lost)
        backend.kill(killed)
        assert ask(backend, other, "add", 1) == 1

    def test_a_worker_that_is_killed_while_it_starts_never_gets_ready(self, backend: Backend, gate: Gate) -> None:
        """`ready` says that it is lost."""
        worker = backend.spawn(job(partial(ToyWorker, gate=gate)))
        if self.concurrent:
            gate.await_arrival()
        backend.kill(worker)
        assert isinstance(error_of(backend, worker.ready), WorkerLost)
        assert isinstance(error_of(backend, worker.ended), WorkerLost)

    def test_an_idle_worker_can_be_killed(self, backend: Backend) -> None:
        """Its life is over then."""
        worker = backend.spawn(job())
        result(backend, worker.ready)
        backend.kill(worker)
        assert isinstance(result_of_end(backend, worker), WorkerLost)
        assert "ended" in repr(worker)

    def test_a_worker_that_exits_is_lost(self, backend: Backend) -> None:
        """`SystemExit` is no answer."""
        worker = backend.spawn(job())
        calls = [backend.call(worker, "fail", SystemExit(4)), backend.call(worker, "add", 1)]
        for ticket in calls:
            assert isinstance(error_of(backend, ticket), WorkerLost)

    def test_the_next_life_is_a_new_worker(self, backend: Backend) -> None:
        """With nothing of the life before."""
        first = backend.spawn(job())
        assert ask(backend, first, "add", 5) == 5
        backend.kill(first)
        second = backend.spawn(job(life=1))
        assert ask(backend, second, "add", 1) == 1
        assert second.name == Name(0, 1)

    def test_what_is_closed_answers_and_stays_closed(self, make_backend: Callable[[], Backend], gate: Gate) -> None:
        """Open calls are lost, nothing is spawned any more; closing twice is fine."""
        backend = make_backend()
        worker = backend.spawn(job())
        result(backend, worker.ready)
        call = backend.call(worker, "wait_at", gate)
        if self.concurrent:
            gate.await_arrival()
        backend.close()
        backend.close()
        assert isinstance(error_of(backend, call), WorkerLost)
        assert isinstance(error_of(backend, backend.call(worker, "add", 1)), WorkerLost)
        with pytest.raises(Closed):
            backend.spawn(job())

    def test_nothing_is_left_after_close(self, make_backend: Callable[[], Backend]) -> None:
        """No thread, no descriptor, no process."""
        run_once(make_backend)  # whatever is made only once
        threads, fds = set(threading.enumerate()), descriptors()
        pids = run_once(make_backend)
        assert set(threading.enumerate()) <= threads
        assert becomes(lambda: descriptors() <= fds, self.lingers_s)
        if self.own_process:
            assert [pid for pid in pids if exists(pid, self.lingers_s)] == []
