"""What every place for workers keeps, as a pytest class: derive from it and say how to make the backend.

```python
import pytest

from swath.testing import BackendContract


class TestMyBackend(BackendContract):
    @pytest.fixture
    def make_backend(self):
        return MyBackend
```
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from swath.errors import Closed, PayloadLost, RemoteFailure, SwathError, WorkerLost
from swath.testing.toy_worker import Gate, Odd, ToyWorker
from swath.workers.base import Backend, Handle, Job
from swath.workers.outcome import Error
from swath.workers.tickets import Name, Ticket

DEADLINE_S = 60.0
LARGE = 3_000_000


class BackendContract:
    """Tests of a backend: order, exceptions, data, deaths, ends.

    Fixtures to override: `make_backend`, which gives a function that makes a backend, each time a new one.

    Attributes:
        concurrent: whether workers go on while nobody waits.
        own_process: whether each worker has a process of its own on this machine.
        sees_idle_deaths: whether `Handle.ended` is settled without a call.
    """

    concurrent = True
    own_process = True
    sees_idle_deaths = True

    @pytest.fixture
    def make_backend(self) -> Callable[[], Backend]:
        """Override: a function that makes a backend."""
        pytest.fail("override the fixture make_backend with a function that makes the backend")

    @pytest.fixture
    def backend(self, make_backend: Callable[[], Backend], request: pytest.FixtureRequest) -> Iterator[Backend]:
        """One for all tests of the class, which may be slow to make; workers are killed after each test."""
        node = request.node.getparent(pytest.Class)
        if _KEPT not in node.stash:
            node.stash[_KEPT] = made = make_backend()
            node.addfinalizer(made.close)
        visit = _Visit(node.stash[_KEPT])
        yield visit
        visit.over()

    @pytest.fixture
    def gate(self, tmp_path: Path) -> Iterator[Gate]:
        """A closed gate, open afterwards."""
        gate = Gate.at(tmp_path / "gate")
        yield gate
        gate.open()

    # Calls

    def test_a_worker_is_ready_when_it_is_built(self, backend: Backend) -> None:
        """`ready` has no value, and calls may follow."""
        worker = backend.spawn(job())
        assert result(backend, worker.ready) is None
        assert ask(backend, worker, "add", 1) == 1

    def test_calls_may_be_sent_before_the_worker_is_ready(self, backend: Backend) -> None:
        """They wait for it."""
        worker = backend.spawn(job(partial(ToyWorker, 5)))
        assert ask(backend, worker, "add", 1) == 6
        assert worker.ready.done

    def test_calls_are_carried_out_in_the_order_in_which_they_were_sent(self, backend: Backend) -> None:
        """For each worker."""
        workers = [backend.spawn(job(index=index)) for index in range(3)]
        tickets = [[backend.call(worker, "add", 1) for _ in range(50)] for worker in workers]
        for calls in tickets:
            assert [result(backend, ticket) for ticket in calls] == list(range(1, 51))

    def test_calls_from_many_threads_are_each_answered_once(self, backend: Backend) -> None:
        """None is lost, none mixed up with another."""
        worker = backend.spawn(job())

        def send_many(start: int) -> list[int]:
            tickets = [backend.call(worker, "echo", start + offset) for offset in range(100)]
            return [result(backend, ticket) for ticket in tickets]

        with ThreadPoolExecutor(4) as pool:
            for start, answers in zip(range(0, 400, 100), pool.map(send_many, range(0, 400, 100)), strict=True):
                assert answers == list(range(start, start + 100))

    def test_functions_and_classes_of_any_origin_travel(self, backend: Backend) -> None:
        """Closures, lambdas, classes that are local to a function."""
        offset = 7

        class Local(ToyWorker):
            def shifted(self, number: int) -> int:
                return number + offset

        worker = backend.spawn(job(lambda: Local()))  # noqa: PLW0108  it is the lambda that travels
        assert ask(backend, worker, "shifted", 1) == 8
        assert ask(backend, worker, "run", lambda number: number * offset, 2) == 14

    def test_before_runs_before_the_worker_is_built(self, backend: Backend) -> None:
        """In the worker."""

        def before() -> None:
            os.environ["SWATH_TOLD_BEFORE"] = "3"

        def build() -> ToyWorker:
            return ToyWorker(int(os.environ.pop("SWATH_TOLD_BEFORE")))

        worker = backend.spawn(job(build, before=before))
        assert ask(backend, worker, "add", 0) == 3

    # Exceptions

    def test_an_exception_is_an_answer_of_its_own_type(self, backend: Backend) -> None:
        """It says where it was raised, and the worker lives on."""
        worker = backend.spawn(job(partial(ToyWorker, 3)))
        ticket = backend.call(worker, "fail", KeyError("gone"))
        with pytest.raises(KeyError, match="gone") as caught:
            result(backend, ticket)
        assert "in fail" in "".join(traceback.format_exception(caught.value))
        assert ask(backend, worker, "add", 1) == 4

    def test_an_exception_that_cannot_be_rebuilt_says_what_it_was(self, backend: Backend) -> None:
        """It is itself where it does not have to be rebuilt, a `RemoteFailure` elsewhere."""
        worker = backend.spawn(job())
        with pytest.raises((RemoteFailure, Odd), match="rather odd") as caught:
            ask(backend, worker, "fail_oddly")
        if isinstance(caught.value, RemoteFailure):
            assert caught.value.type_name.endswith("Odd")
            assert "in fail_oddly" in caught.value.traceback
        assert ask(backend, worker, "add", 1) == 1

    def test_a_missing_method_is_an_answer(self, backend: Backend) -> None:
        """An `AttributeError`."""
        worker = backend.spawn(job())
        with pytest.raises(AttributeError, match="no_such"):
            ask(backend, worker, "no_such")

    def test_what_cannot_travel_is_an_answer(self, backend: Backend) -> None:
        """A `TypeError`; the worker lives on."""
        worker = backend.spawn(job())
        with pytest.raises(TypeError, match="lock"):
            ask(backend, worker, "lock")
        assert ask(backend, worker, "add", 1) == 1

    def test_arguments_that_cannot_travel_raise_at_once(self, backend: Backend) -> None:
        """The caller has the mistake, and the worker goes on."""
        worker = backend.spawn(job())
        with pytest.raises(TypeError, match="lock"):
            backend.call(worker, "echo", threading.Lock())
        assert ask(backend, worker, "add", 1) == 1

    @pytest.mark.parametrize("part", ["build", "before"])
    def test_what_building_raises_is_the_answer_to_ready(self, backend: Backend, part: str) -> None:
        """As itself; calls to such a worker are answered with an error too."""

        def broken() -> None:
            raise ZeroDivisionError("not today")

        worker = backend.spawn(job(broken) if part == "build" else job(before=broken))
        call = backend.call(worker, "add", 1)
        with pytest.raises(ZeroDivisionError, match="not today"):
            result(backend, worker.ready)
        with pytest.raises(SwathError, match="worker 0"):
            result(backend, call)

    # Data

    def test_what_comes_back_is_the_callers(self, backend: Backend) -> None:
        """Arrays and tensors, large and small, are as they were sent, and writable."""
        worker = backend.spawn(job())
        for size in (3, LARGE):
            array, tensor = np.arange(size), torch.arange(size, dtype=torch.bfloat16)
            came = ask(backend, worker, "echo", {"array": array, "tensor": tensor})
            assert np.array_equal(came["array"], array)
            assert torch.equal(came["tensor"], tensor)
            came["array"][:] = -1
            came["tensor"][:] = -1
            assert array[0] == tensor[0] == 0

    def test_the_worker_keeps_what_it_had(self, backend: Backend) -> None:
        """Writing to an answer does not write to the worker's memory."""
        worker = backend.spawn(job())
        for size in (3, LARGE):
            came = ask(backend, worker, "keep", np.ones(size))
            came[:] = 9
            assert ask(backend, worker, "kept_sum") == size

    def test_arguments_may_change_after_the_call(self, backend: Backend) -> None:
        """The worker gets what they were."""
        worker = backend.spawn(job())
        for size in (3, LARGE):
            array = np.ones(size)
            ticket = backend.call(worker, "keep", array)
            array[:] = 5
            assert result(backend, ticket).sum() == size

    def test_bodies_of_parcels_stay_as_they_were_while_the_worker_goes_on(self, backend: Backend) -> None:
        """Each has its own memory until it is closed."""
        worker = backend.spawn(job())
        for size in (3, LARGE):
            parcels = [ask(backend, worker, "parcel", number, size) for number in range(4)]
            bodies = [parcel.open() for parcel in parcels]
            for number, (parcel, body) in enumerate(zip(parcels, bodies, strict=True)):
                assert parcel.head == {"number": number}
                assert set(np.unique(body["array"])) == set(np.unique(body["tensor"])) == {number}
                assert body["array"].shape == (size,)
                assert tuple(body["tensor"].shape) == (size, 1)

    def test_views_of_a_body_are_good_for_as_long_as_somebody_has_them(self, backend: Backend) -> None:
        """Also when their parcel was closed or forgotten."""
        worker = backend.spawn(job())
        views = []
        for number in range(6):
            parcel = ask(backend, worker, "parcel", number, LARGE)
            views.append(parcel.open()["array"][-5:])
            parcel.close()
        assert [view.tolist() for view in views] == [[number] * 5 for number in range(6)]

    def test_a_closed_parcel_is_not_opened(self, backend: Backend) -> None:
        """Closing twice is fine."""
        worker = backend.spawn(job())
        parcel = ask(backend, worker, "parcel", 1, LARGE)
        parcel.close()
        parcel.close()
        with pytest.raises(PayloadLost, match="closed"):
            parcel.open()

    def test_a_parcel_outlives_its_worker(self, backend: Backend) -> None:
        """What has arrived can be opened, unless the place has lost it."""
        worker = backend.spawn(job())
        parcel = ask(backend, worker, "parcel", 4, LARGE)
        backend.kill(worker)
        result_of_end(backend, worker)
        try:
            assert set(np.unique(parcel.open()["array"])) == {4}
        except PayloadLost:
            assert not self.own_process, "a parcel of this machine was lost"

    def test_all_workers_read_what_is_shared(self, backend: Backend) -> None:
        """As it was when it was shared; none can write it."""
        workers = [backend.spawn(job(index=index)) for index in range(3)]
        for size in (3, LARGE):
            array = np.ones(size)
            shared = backend.share({"array": array})
            array[:] = 7
            tickets = [backend.call(worker, "read", shared) for worker in workers]
            assert [result(backend, ticket) for ticket in tickets] == [(size, False)] * 3
            assert shared.open()["array"].sum() == size
            shared.release()
            shared.release()

    def test_a_call_in_flight_reads_what_was_shared_although_it_is_released(self, backend: Backend, gate: Gate) -> None:
        """However many values are shared meanwhile."""
        worker = backend.spawn(job())
        result(backend, worker.ready)
        if self.concurrent:
            backend.call(worker, "wait_at", gate)
            gate.await_arrival()
        tickets = []
        for number in range(5):
            shared = backend.share({"array": np.full(LARGE, number)})
            tickets.append(backend.call(worker, "read", shared))
            shared.release()
        gate.open()
        assert [result(backend, ticket)[0] for ticket in tickets] == [number * LARGE for number in range(5)]

    # Ends

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
        assert descriptors() <= fds
        if self.own_process:
            assert [pid for pid in pids if exists(pid)] == []

    # Waiting

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

    # Processes

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
            assert not exists(pid)

    def test_a_process_that_exits_says_its_code(self, backend: Backend) -> None:
        """`os._exit` in the midst of a method."""
        self._need_processes()
        worker = backend.spawn(job())
        lost = error_of(backend, backend.call(worker, "exit", 3))
        assert isinstance(lost, WorkerLost)
        assert lost.exit == 3

    def test_a_process_that_is_stopped_can_be_killed(self, backend: Backend) -> None:
        """It cannot be asked to go."""
        self._need_processes()
        worker = backend.spawn(job())
        pid = ask(backend, worker, "pid")
        os.kill(pid, signal.SIGSTOP)
        call = backend.call(worker, "add", 1)
        backend.kill(worker)
        assert isinstance(error_of(backend, call), WorkerLost)
        assert not exists(pid)

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


class _Visit:
    """A backend as one test sees it.

    Args:
        backend: others use it too, one after another.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._workers: list[Handle] = []
        self.call, self.wait, self.share = backend.call, backend.wait, backend.share
        self.wake, self.kill, self.room, self.close = backend.wake, backend.kill, backend.room, backend.close

    def spawn(self, job: Job) -> Handle:
        """Spawn, and remember to kill."""
        self._workers.append(self._backend.spawn(job))
        return self._workers[-1]

    def over(self) -> None:
        """Kill what was spawned."""
        for worker in self._workers:
            self._backend.kill(worker)
        for worker in self._workers:
            result_of_end(self._backend, worker)


_KEPT: pytest.StashKey[Backend] = pytest.StashKey()


def job(
    build: Callable[[], Any] = ToyWorker,
    *,
    index: int = 0,
    life: int = 0,
    before: Callable[[], Any] | None = None,
) -> Job:
    """A toy worker, unless told otherwise."""
    return Job(build, Name(index, life), before=before)


def result(backend: Backend, ticket: Ticket) -> Any:
    """Wait for the ticket; its value."""
    assert backend.wait([ticket], DEADLINE_S) == [ticket], f"{ticket.method} of {ticket.name} has no answer"
    return ticket.value


def error_of(backend: Backend, ticket: Ticket) -> BaseException:
    """Wait for the ticket; what it raised."""
    assert backend.wait([ticket], DEADLINE_S) == [ticket], f"{ticket.method} of {ticket.name} has no answer"
    assert isinstance(ticket.outcome, Error), f"{ticket.method} of {ticket.name} has raised nothing"
    return ticket.outcome.exception


def ask(backend: Backend, worker: Handle, method: str, *args: Any) -> Any:
    """Call, wait, and give the value."""
    return result(backend, backend.call(worker, method, *args))


def result_of_end(backend: Backend, worker: Handle) -> BaseException:
    """Wait for the worker's end; its cause."""
    return error_of(backend, worker.ended)


def lost_by_asking(backend: Backend, worker: Handle) -> BaseException:
    """What a call to a dead worker is answered with."""
    return error_of(backend, backend.call(worker, "pid"))


def run_once(make_backend: Callable[[], Backend]) -> list[int]:
    """A backend from its beginning to its end; the processes of its workers."""
    backend = make_backend()
    workers = [backend.spawn(job(index=index)) for index in range(3)]
    pids = [ask(backend, worker, "pid") for worker in workers]
    shared = backend.share({"array": np.ones(LARGE)})
    for worker in workers:
        ask(backend, worker, "read", shared)
        ask(backend, worker, "parcel", 1, LARGE).open()
    backend.kill(workers[0])
    backend.call(workers[1], "echo", np.ones(LARGE))
    backend.close()
    return pids


def descriptors() -> int:
    """How many this process has open."""
    return len(list(Path("/dev/fd").iterdir()))


def exists(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
