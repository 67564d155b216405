"""Workers of an evaluator that are lost, late, or not wanted any more, whatever they are asked for."""

import threading
from dataclasses import replace
from functools import partial

import pytest
from torch import nn

from swath.errors import WorkerLate, WorkerLost
from swath.evaluate import playing
from swath.evaluate.company import Company, Order, Terms
from swath.evaluate.ledger import Booked
from swath.evaluate.parts import Report
from swath.evaluate.playing import Cancelled, Playing
from swath.evaluate.request import EvalLimits, EvalRequest
from swath.evaluate.stopping import StopRule
from swath.evaluators.weights import snapshot_of
from swath.weights.manifest import Manifest
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


class Absent(Recorded):
    """Ends itself when it is asked for anything but to play, the first so many times."""

    def __init__(self, at_work, let_go, method, times):
        super().__init__(at_work, let_go)
        self._method, self._times = method, times

    def play(self, update, part):
        return replace(super().play(update, part), records=False)

    def present(self):
        self._end("present")

    def manifests(self, model_ids):
        self._end("manifests")
        return {model_id: Manifest.of(nn.Linear(1, 1)) for model_id in model_ids}

    def weights(self, model_id):
        self._end("weights")
        return {}

    def _end(self, method):
        if method == self._method and self._times:
            self._times.pop()()


def leave():
    raise SystemExit


def perform(company, timeout_s=60.0, **models):
    request = EvalRequest(StopRule(4), EvalLimits(timeout_s=timeout_s))
    return company.perform(Order(request, models), lambda: False)


@pytest.mark.parametrize("retries", [0, 1])
def test_who_has_gone_unnoticed_between_two_evaluations_is_replaced_and_is_no_loss(signals, retries):
    company = company_of([partial(Absent, method="present", times=[leave, leave])], signals, retries=retries)
    try:
        losses = [perform(company).facts.retries for _ in range(4)]
        assert (losses, company.restarts) == ([0, 0, 0, 0], 2)
    finally:
        company.close(1.0)


WEIGHTS = snapshot_of(nn.Linear(1, 1))


@pytest.mark.parametrize("retries", [0, 1])
def test_who_is_lost_when_asked_what_weights_it_wants_is_replaced_as_often_as_others(signals, retries):
    company = company_of([partial(Absent, method="manifests", times=[leave])], signals, retries=retries)
    try:
        if retries == 0:
            with pytest.raises(WorkerLost):
                perform(company, policy=WEIGHTS)
        assert perform(company, policy=WEIGHTS).facts.retries == retries
        assert company.restarts == 1
        assert set(company.models()["policy"]) == {"weight", "bias"}
    finally:
        company.close(1.0)


@pytest.mark.parametrize("method", ["present", "manifests", "weights"])
def test_who_hangs_when_asked_is_late_and_another_takes_its_place(signals, method, monkeypatch):
    monkeypatch.setattr(playing, "GRACE_S", 0.05)
    times = [signals[1].wait, lambda: None] if method == "weights" else [signals[1].wait]
    company = company_of([partial(Absent, method=method, times=times)], signals, retries=0)
    models = {"policy": WEIGHTS} if method == "manifests" else {}
    try:
        if method != "manifests":
            perform(company)
        if method == "weights":
            company.models()
        company._timeout_s = 0.05
        with pytest.raises(WorkerLate, match=rf"{method}\(\) within timeout_s=0.05"):
            company.models() if method == "weights" else perform(company, 0.05, **models)
        signals[1].set()
        assert perform(company, **models).facts.retries == 0
    finally:
        company.close(1.0)


@pytest.fixture
def signals():
    at_work, let_go = threading.Event(), threading.Event()
    yield at_work, let_go
    let_go.set()


def company_of(kinds, signals, retries=0):
    def job(name):
        return Job(partial(kinds[name.worker], *signals), name)

    return Company(Terms(ThreadBackend, job, list, len(kinds), retries))


def test_the_loss_is_the_outcome_also_while_another_worker_is_at_work(signals):
    company = company_of([Ended, Busy], signals)
    try:
        with pytest.raises(WorkerLost, match=r"^worker 0 "):
            company.perform(Order(EvalRequest(StopRule(4))), lambda: False)
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
            company.perform(Order(EvalRequest(StopRule(4))), at_work.is_set)
    finally:
        stopping.join()
        company.close(1.0)
