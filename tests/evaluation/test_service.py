"""The service beside its workers: whoever is interrupted, whatever fails, it goes on."""

import threading
from types import SimpleNamespace

import pytest

from swath.evaluation.queue import Brief, EvalQueue
from swath.evaluation.request import EvalRequest
from swath.evaluation.service import EvaluationService


class Workers:
    """Plays without workers."""

    restarts = retries = complete = 0
    starting = False
    left_behind = ()

    def perform(self, request, models, stopped):
        return SimpleNamespace(step=request.step)

    def wake(self):
        pass

    def models(self):
        return {}

    def close(self, timeout, *, ends=True):
        pass


def finish(performed):
    return SimpleNamespace(step=performed.step)


@pytest.fixture
def service_of():
    services = []

    def make(policy="queue", *, workers=None, finish=finish, show=lambda result, weights: None):
        services.append(EvaluationService(workers or Workers(), EvalQueue(policy), EvalRequest(), finish, show))
        return services[-1]

    yield make
    for service in services:
        service.close(5.0)


class Held(Workers):
    """Plays until it is stopped."""

    def __init__(self):
        self.at_work, self.woken = threading.Event(), threading.Event()

    def perform(self, request, models, stopped):
        self.at_work.set()
        while not stopped():
            self.woken.wait()
            self.woken.clear()
        raise KeyError("stopped")

    def wake(self):
        self.woken.set()


def test_where_no_thread_can_be_started_nothing_was_asked_for(service_of, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    asked = service_of()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            asked.trigger(Brief, None)
    assert asked.counts()["accepted"] == 0
    assert asked.evaluate(Brief, 7).step == 7


def test_weights_are_copied_only_for_requests_that_are_admitted(service_of):
    service = service_of("skip", workers=Held())
    copies = []

    def supply():
        copies.append(1)
        return Brief()

    assert [service.trigger(supply, None) for _ in range(3)] == [True, False, False]
    assert copies == [1]


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "1", True])
def test_a_timeout_that_is_no_time_is_refused_before_anything_is_done(service_of, timeout):
    asked = service_of()
    for wait in (asked.wait, asked.close):
        with pytest.raises(ValueError, match=r"timeout=.* must be a finite number of seconds"):
            wait(timeout)
    assert not asked.closed
    asked.trigger(Brief, None)
    assert asked.wait(1e300).step == 0
