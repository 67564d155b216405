"""Fleets where their workers really live: real deaths, real threads that wait."""

import os
import signal
import threading
from functools import partial

import pytest

from swath.errors import Closed, FleetFailed, WorkerLost
from swath.options import Restarts, Survival
from swath.workers.base import Job
from swath.workers.fleet import Fleet
from swath.workers.local import InlineBackend, ThreadBackend
from swath.workers.outcome import Error
from swath.workers.process.backend import ProcessBackend
from swath.workers.tickets import Name
from toys import Gate, ToyWorker, visiting

PATIENT = Survival(Restarts(5, backoff_s=0.01), fragment_timeout_s=60.0, placement_timeout_s=60.0)


def toy(name):
    """Starts counting at ten times its life."""
    return Job(partial(ToyWorker, 10 * name.life), name)


def exits_later(name):
    """Ends its process when it is built a second time."""
    return Job(partial(os._exit, 3) if name.life else ToyWorker, name)


def value(fleet, ticket):
    while not fleet.wait([ticket]):
        pass
    return ticket.value


def wait_for(fleet, worker):
    seen = fleet.changes
    while worker not in fleet.up:
        fleet.wait([], seen=seen)
        seen = fleet.changes
    return fleet.up[worker]


def wait_for_ever(fleet):
    while True:
        fleet.wait([])


class Sleeper:
    """A thread that waits for news of a fleet, and surely does when this is made."""

    def __init__(self, fleet, tickets=()):
        self._fleet, self._asked, self._stop = fleet, 0, False
        self._asleep, self._outcome = threading.Event(), None
        self._thread = threading.Thread(target=self._wait, args=(tickets,))
        self._thread.start()
        assert self._asleep.wait(60.0)

    def interrupt(self):
        self._stop = True
        self._fleet.wake()

    def result(self):
        """What the wait returned or raised."""
        self._thread.join(60.0)
        assert not self._thread.is_alive(), "nobody woke it"
        return self._outcome

    def _wait(self, tickets):
        try:
            self._outcome = self._fleet.wait(tickets, interrupted=self._interrupted)
        except Closed as closed:
            self._outcome = closed

    def _interrupted(self):
        """Asked once before the wait, and then by those who hold the lock until it has begun."""
        self._asked += 1
        if self._asked > 1:
            self._asleep.set()
        return self._stop


class OnAnyPlace:
    """What a fleet does wherever its workers live."""

    @pytest.fixture
    def make_fleet(self, make_backend, request):
        """Makes fleets on one backend, which outlives them."""
        with visiting(make_backend, request.node) as backend:
            backend.close = backend.over
            made = []

            def make_fleet(n=2, make_job=toy, survival=PATIENT):
                made.append(Fleet(backend, make_job, n, survival))
                return made[-1]

            yield make_fleet
            for fleet in made:
                fleet.close(0.0)

    @pytest.fixture
    def fleet(self, make_fleet):
        made = make_fleet()
        made.bring_up()
        return made

    def test_workers_answer_and_a_new_life_begins_anew(self, fleet):
        first = fleet.up[0]
        assert value(fleet, fleet.call(first, "add", 5, late=True)) == 5
        fleet.replace(first, ValueError("it has had its day"))
        again = wait_for(fleet, 0)
        assert again.name == Name(0, 1)
        assert value(fleet, fleet.call(again, "add", 5)) == 15
        assert value(fleet, fleet.call(fleet.up[1], "add", 1)) == 1
        with pytest.raises(WorkerLost):
            value(fleet, fleet.call(first, "add", 5))


class OnConcurrentPlaces(OnAnyPlace):
    """Where workers go on while nobody waits."""

    @pytest.fixture
    def gate(self, tmp_path):
        gate = Gate.at(tmp_path)
        yield gate
        gate.open()

    def test_several_threads_wait_and_each_gets_its_own_answer(self, fleet):
        got = {}

        def draw(worker):
            got[worker] = [value(fleet, fleet.call(fleet.up[worker], "add", 1, late=True)) for _ in range(50)]

        threads = [threading.Thread(target=draw, args=(worker,)) for worker in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == {0: list(range(1, 51)), 1: list(range(1, 51))}

    def test_a_death_that_one_thread_notices_is_no_news_to_another(self, fleet, gate):
        lost = fleet.call(fleet.up[0], "wait_at", gate)
        gate.await_arrival()
        threads = [threading.Thread(target=fleet.answers, args=([lost],)) for _ in range(4)]
        for thread in threads:
            thread.start()
        fleet.replace(fleet.up[0], RuntimeError("it has had its day"))
        for thread in threads:
            thread.join()
        assert wait_for(fleet, 0).name == Name(0, 1)
        assert fleet.restarts == 1

    def test_closing_ends_the_waits_of_other_threads_before_it_waits_for_workers(self, fleet, gate):
        ticket = fleet.call(fleet.up[0], "wait_at", gate)
        gate.await_arrival()
        sleeper, closer = Sleeper(fleet, [ticket]), threading.Thread(target=fleet.close, args=(60.0,))
        closer.start()
        assert isinstance(sleeper.result(), Closed)
        gate.open()
        closer.join()

    def test_news_of_added_workers_reach_a_thread_that_waits(self, fleet):
        sleeper = Sleeper(fleet)
        fleet.add(1)
        assert sleeper.result() == []

    def test_a_deadline_is_kept_by_a_thread_that_began_to_wait_before_it_was_set(self, make_fleet, gate):
        fleet = make_fleet(2, survival=Survival(PATIENT.restarts, fragment_timeout_s=0.5))
        fleet.bring_up()
        sleeper = Sleeper(fleet)
        fleet.call(fleet.up[0], "wait_at", gate, late=True)
        assert sleeper.result() == []
        assert len(fleet.late) == 1

    def test_a_wake_ends_a_wait_that_is_interrupted(self, fleet):
        sleeper = Sleeper(fleet)
        sleeper.interrupt()
        assert sleeper.result() == []

    def test_a_worker_that_hangs_is_replaced(self, make_fleet, gate):
        fleet = make_fleet(2, survival=Survival(PATIENT.restarts, fragment_timeout_s=0.5))
        fleet.bring_up()
        ticket = fleet.call(fleet.up[0], "wait_at", gate, late=True)
        with pytest.raises(WorkerLost):
            value(fleet, ticket)
        assert wait_for(fleet, 0).name == Name(0, 1)
        assert (len(fleet.late), fleet.restarts) == (1, 1)


class TestInline(OnAnyPlace):
    @pytest.fixture
    def make_backend(self):
        return InlineBackend


class TestThreads(OnConcurrentPlaces):
    @pytest.fixture
    def make_backend(self):
        return ThreadBackend


class TestProcesses(OnConcurrentPlaces):
    @pytest.fixture
    def make_backend(self):
        return ProcessBackend

    @staticmethod
    def pid(fleet, worker):
        return value(fleet, fleet.call(wait_for(fleet, worker), "pid"))

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
    def test_a_busy_worker_that_is_killed_is_replaced(self, fleet, gate, number):
        pid, ticket = self.pid(fleet, 0), fleet.call(fleet.up[0], "wait_at", gate, late=True)
        gate.await_arrival()
        os.kill(pid, number)
        with pytest.raises(WorkerLost):
            value(fleet, ticket)
        assert self.pid(fleet, 0) != pid
        assert fleet.restarts == 1

    def test_an_idle_worker_that_is_killed_is_replaced(self, fleet):
        pid = self.pid(fleet, 1)
        os.kill(pid, signal.SIGKILL)
        assert fleet.wait([]) == []
        assert wait_for(fleet, 1).name == Name(1, 1)

    def test_a_stopped_worker_is_late_and_replaced(self, make_fleet):
        fleet = make_fleet(1, survival=Survival(PATIENT.restarts, fragment_timeout_s=3.0))
        fleet.bring_up()
        os.kill(self.pid(fleet, 0), signal.SIGSTOP)
        with pytest.raises(WorkerLost):
            value(fleet, fleet.call(fleet.up[0], "add", 1, late=True))
        assert value(fleet, fleet.call(wait_for(fleet, 0), "add", 1, late=True)) == 11
        assert len(fleet.late) == 1

    def test_replacements_that_end_their_process_are_counted(self, make_fleet):
        fleet = make_fleet(1, exits_later, Survival(Restarts(2, backoff_s=0.0)))
        fleet.bring_up()
        os.kill(self.pid(fleet, 0), signal.SIGKILL)
        with pytest.raises(FleetFailed) as failed:
            wait_for_ever(fleet)
        assert [cause.exit for cause in failed.value.causes] == [-signal.SIGKILL, 3, 3]

    def test_kills_again_and_again_while_threads_draw(self, make_fleet):
        fleet = make_fleet(2, survival=Survival(Restarts(100, backoff_s=0.0)))
        fleet.bring_up()
        stopped, answered, lost, pids = threading.Event(), [], [], []

        def draw():
            while not stopped.is_set():
                ticket = fleet.call(wait_for(fleet, 0), "pid", late=True)
                fleet.answers([ticket])
                (lost if isinstance(ticket.outcome, Error) else answered).append(ticket)

        threads = [threading.Thread(target=draw) for _ in range(2)]
        for thread in threads:
            thread.start()
        for life in range(5):
            pids.append(self.pid(fleet, 0))
            os.kill(pids[-1], signal.SIGKILL)
            while fleet.handle(0).name.life == life:
                fleet.wait([])
        pids.append(self.pid(fleet, 0))
        stopped.set()
        for thread in threads:
            thread.join()
        assert len(set(pids)) == 6
        assert {ticket.value for ticket in answered} <= set(pids)
        assert {type(ticket.outcome.exception) for ticket in lost} <= {WorkerLost}
        assert (fleet.restarts, fleet.handle(1).name.life) == (5, 0)
