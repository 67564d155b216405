"""The service beside its workers: whoever is interrupted, whatever fails, it goes on."""

import threading

import pytest

from swath.evaluation.options import EvaluatorOptions
from swath.evaluation.queue import Request
from swath.evaluation.result import episodes_of
from swath.evaluation.service import EvaluationService
from swath.evaluation.worker import Report
from swath.evaluation.workers import Performed


class Workers:
    """Plays without workers."""

    restarts = retries = complete = wanted = 0
    starting = False
    left_behind = []

    def perform(self, request, models, stopped):
        episodes = episodes_of({0: (1.0, 1, True, False, 1)})
        return Performed(request, episodes, "fixed", 1.0, 0, [Report(True, 1, 1.0, "episode", 0)])

    def wake(self):
        pass

    def models(self):
        return {}

    def close(self, timeout, *, ends=True):
        pass


@pytest.fixture
def service_of():
    services = []

    def make(policy="queue", workers=None):
        options = EvaluatorOptions("CartPole-v1", len, busy_policy=policy)
        services.append(EvaluationService(options, workers or Workers()))
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
            asked.trigger(Request)
    assert asked.stats()["accepted"] == 0
    assert asked.evaluate(lambda: Request(7)).step == 7


def test_weights_are_copied_only_for_requests_that_are_admitted(service_of):
    service = service_of("skip", Held())
    copies = []

    def supply():
        copies.append(1)
        return Request()

    assert [service.trigger(supply) for _ in range(3)] == [True, False, False]
    assert copies == [1]


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "1", True])
def test_a_timeout_that_is_no_time_is_refused_before_anything_is_done(service_of, timeout):
    asked = service_of()
    for wait in (asked.wait, asked.close):
        with pytest.raises(ValueError, match=r"timeout=.* must be a finite number of seconds"):
            wait(timeout)
    assert not asked.closed
    asked.trigger(Request)
    assert asked.wait(1e300).step == 0
