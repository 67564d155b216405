"""Fleets with real threads that wait. `test_fleet.py` has single faults."""

import threading

import pytest

from swath.errors import Closed
from swath.options import Restarts, Survival
from swath.workers.fleet import Fleet
from swath.workers.local import ThreadBackend
from swath.workers.tickets import Name
from toys import DEADLINE_S, end, job


@pytest.fixture
def make_fleet():
    """Return a function that makes a running fleet of two."""
    fleets = []

    def make_fleet(backend=ThreadBackend, **survival):
        patient = {"restarts": Restarts(100, backoff_s=0.0), "fragment_timeout_s": DEADLINE_S, **survival}
        fleets.append(Fleet(backend(), lambda name: job(index=name.worker, life=name.life), 2, Survival(**patient)))
        fleets[-1].start()
        return fleets[-1]

    yield make_fleet
    for fleet in fleets:
        fleet.close(0.0)


def wait_for(fleet, worker):
    known = fleet.event_count
    while worker not in fleet.up:
        fleet.wait([], known_events=known)
        known = fleet.event_count
    return fleet.up[worker]


class Sleeper:
    """A thread that waits for events of a fleet; the constructor returns once it does."""

    def __init__(self, fleet, tickets=()):
        self._fleet, self._asked, self._stop = fleet, 0, False
        self._asleep, self._outcome = threading.Event(), None
        self._thread = threading.Thread(target=self._wait, args=(tickets,))
        self._thread.start()
        assert self._asleep.wait(DEADLINE_S)

    def interrupt(self):
        self._stop = True
        self._fleet.wake()

    def result(self):
        """Return the result of the wait, or its exception."""
        end(self._thread)
        return self._outcome

    def _wait(self, tickets):
        try:
            self._outcome = self._fleet.wait(tickets, interrupted=self._interrupted)
        except Closed as closed:
            self._outcome = closed

    def _interrupted(self):
        """Note the second call: the first comes before the wait, later ones within it."""
        self._asked += 1
        if self._asked > 1:
            self._asleep.set()
        return self._stop


def test_a_death_that_several_threads_notice_counts_once(make_fleet, gate):
    fleet = make_fleet()
    lost = fleet.call(fleet.up[0], "wait_at", gate)
    gate.await_arrival()
    threads = [threading.Thread(target=fleet.wait_for_all, args=([lost],)) for _ in range(4)]
    for thread in threads:
        thread.start()
    fleet.replace(Name(0, 0), RuntimeError("it has had its day"))
    end(*threads)
    assert wait_for(fleet, 0).name == Name(0, 1)
    assert fleet.restarts == 1


def test_closing_ends_the_waits_of_other_threads_before_it_waits_for_workers(make_fleet, gate):
    fleet = make_fleet()
    ticket = fleet.call(fleet.up[0], "wait_at", gate)
    gate.await_arrival()
    sleeper, closer = Sleeper(fleet, [ticket]), threading.Thread(target=fleet.close, args=(DEADLINE_S,))
    closer.start()
    assert isinstance(sleeper.result(), Closed)
    gate.open()
    end(closer)


WAKES = {
    "workers are added": lambda fleet, sleeper: fleet.add(1),
    "a worker is replaced": lambda fleet, sleeper: fleet.replace(Name(0, 0), RuntimeError("it has had its day")),
    "it is interrupted": lambda fleet, sleeper: sleeper.interrupt(),
}


@pytest.mark.parametrize("wake", WAKES.values(), ids=WAKES)
def test_events_reach_a_thread_that_waits(make_fleet, wake):
    fleet = make_fleet()
    sleeper = Sleeper(fleet)
    wake(fleet, sleeper)
    assert sleeper.result() == []


def test_a_waiting_thread_keeps_a_deadline_that_is_set_later(make_fleet, gate):
    fleet = make_fleet(fragment_timeout_s=0.5)
    sleeper = Sleeper(fleet)
    fleet.call(fleet.up[0], "wait_at", gate, timed=True)
    assert sleeper.result() == []
    assert (len(fleet.late), fleet.restarts) == (1, 1)
