"""Waiting for workers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from swath.testing.backend.asking import (
    DEADLINE_S,
    Place,
    job,
    result,
)
from swath.testing.toy_worker import Gate
from swath.workers.base import Backend


class Waiting(Place):
    """Tests of waiting."""

    def test_waiting_ends_at_its_deadline(self, backend: Backend, gate: Gate) -> None:
        """With nothing, or with what is done."""
        assert backend.wait([], 0.0) == []
        if not self.concurrent:
            return
        slow, quick = backend.spawn(job()), backend.spawn(job(index=1))
        late = backend.call(slow, "wait_at", gate)
        gate.await_arrival()
        assert backend.wait([late], 0.01) == []
        done = backend.call(quick, "add", 1)
        assert backend.wait([late, done], DEADLINE_S) == [done]
        gate.open()
        assert result(backend, late) is None

    def test_waiting_can_be_interrupted(self, backend: Backend) -> None:
        """Whoever is woken looks."""
        asked = threading.Event()

        def interrupted() -> bool:
            looked.set()
            return asked.is_set()

        looked = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(backend.wait, [], DEADLINE_S, interrupted)
            assert looked.wait(DEADLINE_S)
            asked.set()
            backend.wake()
            assert waiting.result(DEADLINE_S) == []

    def test_two_threads_can_wait(self, backend: Backend) -> None:
        """Each for its own tickets, and both for the same."""
        workers = [backend.spawn(job(index=index)) for index in range(2)]
        tickets = [backend.call(worker, "add", 1 + index) for index, worker in enumerate(workers)]
        with ThreadPoolExecutor(4) as pool:
            own = [pool.submit(result, backend, ticket) for ticket in tickets]
            both = [pool.submit(result, backend, tickets[1]) for _ in range(2)]
            assert [waiting.result(DEADLINE_S) for waiting in own + both] == [1, 2, 2, 2]
