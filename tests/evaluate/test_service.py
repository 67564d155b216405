"""The service beside its workers: whatever interrupts its callers, whatever listens to its log, it goes on."""

import linecache
import logging
import os
import sys
import threading
import warnings
from types import SimpleNamespace

import pytest

from swath.errors import Closed
from swath.evaluate import busy, inbox, outbox, service
from swath.evaluate.busy import InboxRules
from swath.evaluate.parts import Wishes
from swath.evaluate.plan import Brief, Plan
from swath.evaluate.request import EvalRequest
from swath.evaluate.service import EvaluationService

WATCHDOG_S = 60.0


class Company:
    """Plays without workers."""

    restarts = retries = complete = closed = 0
    starting = False
    left_behind = ()

    def perform(self, order, stopped):
        return SimpleNamespace()

    def wake(self):
        pass

    def models(self):
        return {}

    def close(self, timeout):
        self.closed += 1
        return []


def finish(performed, request):
    return SimpleNamespace(step=request.step)


def service_of(policy="queue", *, company=None, finish=finish, show=lambda result, weights: None):
    return EvaluationService(company or Company(), Plan(EvalRequest(), Wishes(), finish, show), InboxRules(policy))


def in_time(call):
    """What it returns, in a thread of its own; `None` if it raises or hangs."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(call()), daemon=True)
    thread.start()
    thread.join(WATCHDOG_S)
    return answers[0] if answers else None


# ---- interrupts

FILES = {module.__file__ for module in (service, inbox, outbox, busy)}


def interrupted(call, at):
    """Call it, with an interrupt at the so-manieth line of ours; whether there are so many."""
    seen = 0

    def trace(frame, event, arg):
        nonlocal seen
        code = frame.f_code.co_filename
        if code not in FILES:
            return None
        # where a `with` is left Python lets no interrupt in before the lock is free, but a trace it does
        if event == "line" and not linecache.getline(code, frame.f_lineno).lstrip().startswith("with "):
            seen += 1
            if seen == at + 1:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return seen > at


CALLS = {
    "trigger": lambda asked: asked.trigger(Brief, None),
    "evaluate": lambda asked: asked.evaluate(Brief, None),
    "wait": lambda asked: (asked.trigger(Brief, None), asked.wait()),
    "cancel": lambda asked: (asked.trigger(Brief, None), asked.cancel()),
}


def is_fine(asked):
    """Whether requests of both kinds have their outcomes."""
    asked.evaluate(Brief, 7)
    while asked.wait() is not None:
        pass
    asked.trigger(Brief, 8)
    return asked.wait().step == 8


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_wherever_a_caller_is_interrupted_the_next_requests_have_their_outcomes(call):
    at, more = 0, True
    while more:
        asked = service_of("error")
        more = interrupted(lambda: call(asked), at)  # noqa: B023  called at once
        assert in_time(lambda: is_fine(asked)), f"at line {at}"  # noqa: B023
        asked.close(5.0)
        at += 1
    assert at > 40


def test_wherever_closing_is_interrupted_closing_again_ends_all():
    at, more = 0, True
    while more:
        asked = service_of()
        asked.trigger(Brief, None)
        more = interrupted(lambda: asked.close(5.0), at)  # noqa: B023
        assert in_time(lambda: asked.close(5.0) is None), f"at line {at}"  # noqa: B023
        assert not asked.pending
        assert asked._company.closed >= 1
        assert not asked._thread.is_alive()
        at += 1
    assert at > 10


def test_where_no_thread_can_be_started_nothing_was_asked_for(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    asked = service_of()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            asked.trigger(Brief, None)
    assert not asked.pending
    assert asked.counts()["accepted"] == 0
    assert is_fine(asked)
    asked.close(5.0)


# ---- logging


class Broken(logging.Handler):
    def emit(self, record):
        raise OSError("the disk is full")


@pytest.fixture
def broken_log(monkeypatch):
    """A handler that raises; what it raised."""
    told = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_type))
    handler = Broken()
    logging.getLogger("swath").addHandler(handler)
    yield told
    logging.getLogger("swath").removeHandler(handler)


def raises(*args):
    raise ValueError("no such number")


@pytest.mark.parametrize("where", [{"finish": raises}, {"show": raises}], ids=["finish", "show"])
def test_a_log_handler_that_raises_stops_nothing_and_is_told(where, broken_log):
    asked = service_of(**where)
    for step in range(2):
        asked.trigger(Brief, step)
        if "finish" in where:
            with pytest.raises(ValueError, match="no such number"):
                asked.wait()
        else:
            assert asked.wait().step == step
    asked.close(5.0)
    assert broken_log == [OSError, OSError]


# ---- the newest


def test_the_newest_takes_the_place_also_of_what_waits_for_on_result():
    showing, go_on, played = threading.Event(), threading.Event(), []

    def show(result, weights):
        showing.set()
        go_on.wait()

    def note(performed, request):
        played.append(request.step)
        return finish(performed, request)

    asked = service_of("latest", finish=note, show=show)
    asked.trigger(Brief, 0)
    showing.wait()
    asked.trigger(Brief, 1)
    asked.trigger(Brief, 2)
    go_on.set()
    assert [asked.wait().step, asked.wait().step, asked.wait()] == [0, 2, None]
    assert played == [0, 2]
    assert asked.counts()["superseded"] == 1
    asked.close(5.0)


class Slow(Company):
    """Notes which models it is sent, and plays when it may."""

    def __init__(self):
        self.at_work, self.go_on, self.sent = threading.Event(), threading.Event(), []

    def perform(self, order, stopped):
        self.at_work.set()
        self.go_on.wait()
        self.sent.append({model_id: snapshot.name for model_id, snapshot in order.models.items()})
        return super().perform(order, stopped)


def weights_of(**names):
    models = {model_id: SimpleNamespace(nbytes=0, name=name) for model_id, name in names.items()}
    return lambda: Brief(models, weighted=bool(models))


def test_weights_of_a_request_that_is_replaced_do_not_act_behind_newer_ones_that_somebody_waits_for():
    company = Slow()
    asked = service_of("latest", company=company)
    asked.trigger(Brief, None)
    company.at_work.wait()
    asked.trigger(weights_of(policy="older", env="last"), None)
    waiting = threading.Thread(target=lambda: asked.evaluate(weights_of(policy="newer"), None))
    waiting.start()
    while asked.counts()["queued"] < 2:
        assert waiting.is_alive()
    asked.trigger(Brief, None)
    company.go_on.set()
    waiting.join()
    assert [asked.wait() is not None, asked.wait() is not None] == [True, True]
    assert company.sent == [{}, {"policy": "newer"}, {"env": "last"}]
    asked.close(5.0)


# ---- forks


def in_a_fork(call):
    """Whether it is true in a forked child, which then ends without a trace."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads: that is what is tried
        child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if call() else 2
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def is_over(asked):
    try:
        asked.trigger(Brief, None)
    except Closed as error:
        said = "fork" in str(error)
    asked.close(5.0)
    return said and asked.closed and not asked.pending and asked.wait() is None and asked._company.closed == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_in_a_forked_process_it_is_over_and_leaves_the_workers_to_the_parent():
    asked = service_of()
    assert in_a_fork(lambda: is_over(asked))
    assert is_fine(asked)
    assert in_a_fork(lambda: is_over(asked))
    with asked._changed:
        assert in_a_fork(lambda: is_over(asked)), "whoever holds the lock is not there"
    assert is_fine(asked)
    asked.close(5.0)


# ---- wrong types


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "1", True])
def test_a_timeout_that_is_no_time_is_refused_before_anything_is_done(timeout):
    asked = service_of()
    for wait in (asked.wait, asked.close):
        with pytest.raises(ValueError, match=r"timeout=.* must be a finite number of seconds"):
            wait(timeout)
    assert not asked.closed
    asked.trigger(Brief, None)
    assert asked.wait(1e300).step == 0
    asked.close(1e300)
