"""Workers of an evaluator that are lost or not wanted any more while others are at work."""

import threading
from functools import partial

import pytest

from swath.errors import WorkerLost
from swath.evaluate.company import Company, Order, Terms
from swath.evaluate.ledger import Booked
from swath.evaluate.parts import Report
from swath.evaluate.playing import Cancelled, Playing
from swath.evaluate.request import EvalRequest
from swath.evaluate.stopping import StopRule
from swath.workers.base import Job
from swath.workers.thread import ThreadBackend


class Busy:
    """Plays until it is let go."""

    def __init__(self, at_work, let_go):
        self._at_work, self._let_go = at_work, let_go

    def play(self, update, part):
        self._at_work.set()
        self._let_go.wait()
        return Report(False, 0, {}, 0.0, "episode")

    def close(self):
        pass


class Ended(Busy):
    """Ends itself once another is at work."""

    def play(self, update, part):
        self._at_work.wait()
        raise SystemExit


class Recorded(Busy):
    """Plays at once; its recorders need until it is let go."""

    def play(self, update, part):
        rows = {episode: Booked(1.0, 1, terminated=True, truncated=False) for episode in part.episodes}
        return Report(True, len(rows), {}, 0.1, "episode", rows, records=True)

    def dump(self, step, write):
        self._at_work.set()
        self._let_go.wait()
        return []


@pytest.fixture
def signals():
    at_work, let_go = threading.Event(), threading.Event()
    yield at_work, let_go
    let_go.set()


def company_of(kinds, signals):
    def job(name):
        return Job(partial(kinds[name.worker], *signals), name)

    return Company(Terms(ThreadBackend, job, lambda: None, len(kinds), retries=0))


def test_the_loss_is_the_outcome_also_while_another_worker_is_at_work(signals):
    company = company_of([Ended, Busy], signals)
    try:
        with pytest.raises(WorkerLost, match="worker 0"):
            company.perform(Order(0, EvalRequest(StopRule(4))), lambda: False)
    finally:
        signals[1].set()
        company.close(1.0)


def test_who_is_stopped_while_recorders_write_is_cancelled(signals, monkeypatch):
    at_work, let_go = signals
    company = company_of([Recorded], signals)
    as_ever = Playing.let_go

    def once_they_are_through(playing):
        let_go.set()
        as_ever(playing)

    def stop():
        at_work.wait()
        company.wake()

    monkeypatch.setattr(Playing, "let_go", once_they_are_through)
    stopping = threading.Thread(target=stop)
    stopping.start()
    try:
        with pytest.raises(Cancelled):
            company.perform(Order(0, EvalRequest(StopRule(4))), at_work.is_set)
    finally:
        stopping.join()
        company.close(1.0)
