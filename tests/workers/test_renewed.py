"""Waits that begin again, with a clock that goes on only while they wait."""

import math
import threading

import pytest

from interrupts import signalled_elsewhere
from swath.workers import renewed as module
from swath.workers.renewed import SIGNALS_S, join, renewed


@pytest.fixture
def clock(monkeypatch):
    """Seconds of each wait so far."""
    waits = []
    monkeypatch.setattr(module.time, "monotonic", lambda: math.fsum(waits))
    return waits


def waiting_for(clock, after=math.inf):
    """Waits as long as it is told; what it waits for comes after so many waits."""

    def wait(seconds):
        clock.append(seconds)
        return len(clock) >= after

    return wait


def test_a_wait_is_renewed_until_its_time_is_over(clock):
    assert not renewed(waiting_for(clock), 2.5 * SIGNALS_S)
    assert clock == [SIGNALS_S, SIGNALS_S, 0.5 * SIGNALS_S]


def test_a_wait_without_a_time_is_renewed_until_it_is_over(clock):
    assert renewed(waiting_for(clock, after=9))
    assert clock == [SIGNALS_S] * 9


@pytest.mark.parametrize("timeout", [0.0, -1.0])
def test_what_has_no_time_looks_once(clock, timeout):
    assert not renewed(waiting_for(clock), timeout)
    assert renewed(waiting_for(clock, after=2), timeout)
    assert clock == [0.0, 0.0]


def test_who_joins_a_thread_hears_whether_it_has_ended():
    inside = threading.Event()
    thread = threading.Thread(target=inside.wait, args=(60,))
    thread.start()
    assert not join(thread, 0.0)
    inside.set()
    assert join(thread, 60.0)


@pytest.mark.timeout(30)
def test_an_interrupt_that_the_system_gives_to_another_thread_ends_a_join():
    inside, joining = threading.Event(), threading.Event()
    thread = threading.Thread(target=inside.wait, args=(60,))
    ended = thread.join

    def told(seconds):
        joining.set()
        ended(seconds)

    thread.join = told
    thread.start()
    with signalled_elsewhere(joining.is_set), pytest.raises(KeyboardInterrupt):
        join(thread, 600.0)
    inside.set()
    ended()
