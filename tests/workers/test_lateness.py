"""Which calls take too long, counted from when their turn came."""

from math import inf
from weakref import ref

from swath.workers.lives import Lateness
from swath.workers.outcome import Value
from swath.workers.tickets import Name, Ticket

A, B = Name(0, 0), Name(1, 0)


def up(patience=10.0):
    """Two workers that have been up for long."""
    lateness = Lateness(patience)
    for name in (A, B):
        lateness.begun(name, -100.0)
    assert lateness.late(-100.0) == []
    return lateness


def ticket(name=A, *, sent):
    made = Ticket(name, "collect")
    made.sent = sent
    return made


def calls(lateness, *sent, name=A, timed=True):
    made = [ticket(name, sent=at) for at in sent]
    for each in made:
        lateness.called(each, timed=timed)
    return made


def test_a_call_is_late_when_it_has_taken_as_long_as_is_allowed():
    lateness = up()
    (call,) = calls(lateness, 5.0)
    assert lateness.due_at == 15.0
    assert lateness.late(14.9) == []
    assert lateness.late(15.0) == [call]


def test_an_answered_call_is_not_late():
    lateness = up()
    (call,) = calls(lateness, 5.0)
    call.settled = 14.0
    assert lateness.late(100.0) == []
    assert lateness.due_at == inf


def test_the_time_of_a_call_begins_when_the_one_before_it_is_answered():
    lateness = up()
    first, second = calls(lateness, 0.0, 1.0)
    first.settled = 9.0
    assert lateness.late(18.9) == []
    assert lateness.due_at == 19.0
    assert lateness.late(19.0) == [second]


def test_a_worker_that_was_idle_is_given_the_whole_time():
    lateness = up()
    (first,) = calls(lateness, 0.0)
    first.settled = 1.0
    (second,) = calls(lateness, 50.0)
    assert lateness.late(59.9) == []
    assert lateness.late(60.0) == [second]


def test_a_call_that_keeps_a_timed_one_waiting_is_held_to_the_same_time():
    lateness = up()
    (control,) = calls(lateness, 0.0, timed=False)
    assert lateness.late(1000.0) == [], "nobody waits for it here"
    calls(lateness, 1.0)
    assert lateness.late(10.0) == [control]


def test_each_worker_has_a_time_of_its_own():
    lateness = up()
    (mine,), (other,) = calls(lateness, 0.0), calls(lateness, 3.0, name=B)
    assert lateness.due_at == 10.0
    assert lateness.late(12.0) == [mine]
    lateness.ended(A)
    assert lateness.late(13.0) == [other]


def test_a_call_to_a_worker_that_is_being_built_has_its_time_from_when_that_is_up():
    lateness = Lateness(10.0)
    (call,) = calls(lateness, 0.0)
    assert lateness.late(200.0) == []
    lateness.begun(A, 300.0)
    assert lateness.due_at == 310.0
    assert lateness.late(309.9) == []
    assert lateness.late(310.0) == [call]


def test_answered_calls_are_let_go_of():
    lateness, value = up(), {0.0}
    (call,) = calls(lateness, 0.0)
    call.outcome, call.settled = Value(value), 1.0
    kept = ref(value)
    lateness.answered(A)
    del call, value
    assert kept() is None, "what a worker answered is as large as a fragment"
    lateness.answered(B)
    assert lateness.late(50.0) == []


def test_without_a_deadline_nobody_is_late():
    lateness = up(None)
    calls(lateness, 0.0)
    assert lateness.due_at == inf
    assert lateness.late(1e12) == []
