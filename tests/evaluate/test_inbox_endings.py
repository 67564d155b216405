"""How requests end early: cancelled, closed, withdrawn; what is refused, and news that come too late."""

import pytest
from inbox_toys import (
    BUSY,
    NOT_BUSY,
    POLICIES,
    accepted,
    ask,
    copying,
    counts,
    finish,
    idle,
    inbox,
    only_sync,
    read,
    run,
    settle,
    show,
    state,
    stopping,
    sync_running,
    sync_unread,
    unread,
    withdrawn,
)

from swath.errors import Closed as ClosedError
from swath.errors import SwathError
from swath.evaluate.busy import InboxRules
from swath.evaluate.inbox_events import (
    Accept,
    Asked,
    Cancelled,
    Closed,
    Drop,
    Finished,
    Published,
    Read,
    Refuse,
    Restored,
    Stop,
    Supplied,
    Wake,
)


def test_cancelling_drops_async_requests_that_wait_and_stops_the_running_one():
    box = inbox("queue")
    for number in range(4):
        ask(box, number, sync=number == 2)
    assert box.handle(Cancelled()) == [Drop(1), Drop(3), Stop(0), Wake()]
    assert (box.pending, box.queued, box.running) == (False, 1, accepted(0))
    assert box.handle(Cancelled()) == [], "none is left, and none is stopped twice"
    assert finish(box, 0) == [run(2, sync=True)], "it has no outcome"
    assert counts(box) == {"accepted": 4, "cancelled": 3}
    assert box.handle(Cancelled()) == [], "the running one is sync"
    settle(box, 2)
    assert (read(box, 2), read(box)) == ("outcome 2", None)


def test_a_request_that_is_asked_for_after_a_cancellation_runs_when_the_workers_have_stopped():
    box = inbox("error")
    ask(box, 0)
    box.handle(Cancelled())
    assert ask(box, 1) == [Accept(accepted(1))]
    assert (box.pending, box.running) == (True, accepted(0))
    assert finish(box, 0) == [run(1)]


def test_what_is_being_shown_is_too_late_to_cancel():
    box = inbox()
    ask(box, 0)
    finish(box, 0)
    assert box.handle(Cancelled()) == []
    assert box.handle(Cancelled(0)) == []
    assert box.pending
    assert show(box, 0) == [Wake()]
    assert read(box) == "outcome 0"


INTERRUPTED = {
    "admitted": (lambda box: box.handle(Asked(1, sync=True)), [], {"accepted": 1}),
    "waiting": (lambda box: ask(box, 1, sync=True), [Drop(1), Wake()], {"accepted": 2, "cancelled": 1}),
    "running": (
        lambda box: (ask(box, 1, sync=True), settle(box, 0)),
        [Stop(1), Wake()],
        {"accepted": 2, "completed": 1, "cancelled": 1},
    ),
    "shown": (
        lambda box: (ask(box, 1, sync=True), settle(box, 0), finish(box, 1)),
        [],
        {"accepted": 2, "completed": 1},
    ),
    "readable": (
        lambda box: (ask(box, 1, sync=True), settle(box, 0), settle(box, 1)),
        [],
        {"accepted": 2, "completed": 2},
    ),
}


@pytest.mark.parametrize(("reach", "answer", "counted"), INTERRUPTED.values(), ids=INTERRUPTED)
def test_a_caller_that_is_interrupted_withdraws_its_request_wherever_it_stands(reach, answer, counted):
    box = inbox()
    ask(box, 0)
    reach(box)
    assert box.handle(Cancelled(1)) == answer
    assert counts(box) == counted
    assert not box.expects(1)
    settle(box, 0)
    settle(box, 1)
    assert read(box, 1) is None
    assert (read(box), read(box)) == ("outcome 0", None)
    assert box.at_rest


def test_closing_drops_what_waits_stops_what_runs_and_wakes_everybody():
    box = inbox("queue")
    for number in range(5):
        ask(box, number, sync=number == 3)
    box.handle(Asked(5))
    settle(box, 0)
    assert box.handle(Closed()) == [Drop(2), Drop(3), Drop(4), Stop(1), Wake()]
    assert (box.closed, box.pending, box.queued, box.unread) == (True, False, 0, 1)
    assert not box.expects(3)
    assert box.handle(Supplied(5, "request 5")) == [Refuse("closed")]
    assert ask(box, 6) == ask(box, 7, sync=True) == [Refuse("closed")]
    assert finish(box, 1) == []
    assert [read(box), read(box)] == ["outcome 0", None]
    assert counts(box) == {"accepted": 5, "completed": 1, "cancelled": 4}


def test_what_is_being_shown_when_it_is_closed_can_be_read_afterwards():
    box = inbox("queue")
    ask(box, 0)
    ask(box, 1)
    finish(box, 0)
    assert box.handle(Closed()) == [Drop(1), Wake()]
    assert show(box, 0) == [Wake()]
    assert [read(box), read(box)] == ["outcome 0", None]
    assert counts(box) == {"accepted": 2, "completed": 1, "cancelled": 1}


def test_closing_does_not_cancel_twice_what_is_to_stop_already():
    box = inbox()
    ask(box, 0)
    assert box.handle(Cancelled(0)) == [Stop(0), Wake()]
    assert box.handle(Cancelled(0)) == []
    assert box.handle(Closed()) == [Wake()]
    assert counts(box) == {"accepted": 1, "cancelled": 1}


def test_closing_forgets_what_was_being_copied():
    box = inbox()
    copying(box)
    assert not box.at_rest
    box.handle(Closed())
    assert box.at_rest


def test_closing_twice_or_before_anything_wakes_and_does_nothing_else():
    box = inbox()
    assert box.handle(Closed()) == box.handle(Closed()) == [Wake()]
    assert counts(box) == {}
    assert box.at_rest


def test_a_caller_that_is_blocked_when_it_is_closed_gets_nothing_even_if_its_outcome_is_being_shown():
    box = inbox()
    ask(box, 0, sync=True)
    finish(box, 0)
    box.handle(Closed())
    assert not box.expects(0)
    show(box, 0)
    assert read(box, 0) is None
    assert box.at_rest


def test_an_outcome_that_was_readable_before_it_was_closed_is_its_callers():
    box = inbox()
    ask(box, 0, sync=True)
    settle(box, 0)
    box.handle(Closed())
    assert read(box, 0) == "outcome 0"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("situation", [*BUSY, *NOT_BUSY])
def test_news_of_requests_that_are_over_or_not_there_yet_change_nothing(situation, policy):
    box = inbox(policy)
    situation(box)
    before = state(box)
    for event in (Finished(77, "?"), Published(77, "?"), Read(77), Cancelled(77)):
        assert box.handle(event) == []
    if box.running is not None:
        assert show(box, box.running.number) == [], "its workers are not done"
    assert state(box) == before


def test_a_request_that_was_not_admitted_cannot_be_supplied():
    box = inbox()
    with pytest.raises(KeyError):
        box.handle(Supplied(0, "request 0"))
    assert box.at_rest


def test_counts_go_on_where_an_earlier_inbox_stopped():
    box = inbox()
    assert box.handle(Restored(7, 3)) == []
    made = ask(box, 0, weighted=True)[0].accepted
    assert (made.step, made.policy_version) == (7, 4)


@pytest.mark.parametrize("situation", [*BUSY, only_sync, sync_running, sync_unread, unread])
def test_counts_are_not_replaced_while_there_is_work(situation):
    box = inbox()
    situation(box)
    before = state(box)
    assert not box.at_rest
    assert box.handle(Restored(7, 3)) == [Refuse("at work")]
    assert state(box) == before


@pytest.mark.parametrize("situation", [idle, stopping, withdrawn])
def test_an_inbox_without_work_is_at_rest(situation):
    box = inbox()
    situation(box)
    assert box.at_rest


REFUSALS = {
    "closed": "shut down",
    "pending": "Evaluation already pending.*busy_policy='queue'.*'skip'.*'latest'",
    "unread": r"12 outcomes are unread.*poll\(\)",
    "at work": "pending, queued, or unread",
}


@pytest.mark.parametrize(("why", "says"), REFUSALS.items(), ids=REFUSALS)
def test_a_refusal_is_an_error_that_says_what_to_do(why, says):
    refusal = Refuse(why, 12)
    with pytest.raises(ClosedError if why == "closed" else SwathError, match=says):
        raise refusal.error
    assert refusal.error is not refusal.error, "each caller gets its own"


def test_an_unknown_busy_policy_is_refused_with_the_choices():
    with pytest.raises(ValueError, match=r"Unknown busy_policy 'drop'.*'error', 'queue', 'skip', 'latest'"):
        InboxRules("drop")
