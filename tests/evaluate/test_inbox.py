"""Which evaluation is next, what a busy evaluator answers, and who reads which outcome: events in, instructions out."""

import gc
import weakref

import pytest
from inbox_toys import (
    BUSY,
    NOT_BUSY,
    POLICIES,
    accepted,
    ask,
    counts,
    finish,
    inbox,
    read,
    run,
    settle,
    show,
    state,
)

from swath.evaluate.busy import MOST_UNREAD
from swath.evaluate.inbox_events import (
    Accept,
    Admit,
    Asked,
    Cancelled,
    Deliver,
    Finished,
    Publish,
    Published,
    Read,
    Refuse,
    Skip,
    Supersede,
    Supplied,
    Wake,
)


def test_a_request_goes_its_way_from_being_asked_to_being_read():
    box = inbox()
    assert box.handle(Asked(0)) == [Admit(0)]
    assert not box.pending, "it is not accepted yet"
    assert box.handle(Supplied(0, "request 0", weighted=True)) == [
        Accept(accepted(0, version=1)),
        run(0, version=1),
    ]
    assert (box.pending, box.queued, box.running) == (True, 0, accepted(0, version=1))
    assert finish(box, 0) == [Publish(accepted(0, version=1), "outcome 0")]
    assert (box.pending, box.unread, box.running) == (True, 0, None)
    assert show(box, 0) == [Wake()]
    assert (box.pending, box.unread) == (False, 1)
    assert box.handle(Read()) == [Deliver("outcome 0")]
    assert box.handle(Read()) == []
    assert box.at_rest
    assert counts(box) == {"accepted": 1, "completed": 1}


def test_what_is_read_is_what_was_published_not_what_the_workers_said():
    box = inbox()
    ask(box, 0)
    box.handle(Finished(0, "raw"))
    box.handle(Published(0, "an error of metrics_fn", failed=True))
    assert read(box) == "an error of metrics_fn"
    assert counts(box) == {"accepted": 1, "errors": 1}


ANSWERS = {"error": Refuse("pending"), "skip": Skip(), "queue": Admit(9), "latest": Admit(9)}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("situation", [*BUSY, *NOT_BUSY])
def test_a_policy_answers_while_an_async_request_is_pending_or_copied_and_only_then(situation, policy):
    box = inbox(policy)
    situation(box)
    before = state(box)
    answer = box.handle(Asked(9))
    assert answer == [ANSWERS[policy] if situation in BUSY else Admit(9)]
    if answer == [Skip()]:
        assert counts(box) == {**before[1], "skipped": 1}
    elif answer == [Refuse("pending")]:
        assert state(box) == before


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("situation", [*BUSY, *NOT_BUSY])
def test_a_sync_request_is_admitted_whatever_the_policy_and_makes_nobody_busy(situation, policy):
    box = inbox(policy)
    situation(box)
    pending = box.pending
    assert ask(box, 8, sync=True)[0] == Accept(accepted(8, sync=True, step=box.step_counter - 1))
    assert box.pending == pending
    assert box.expects(8)


def test_queue_is_first_in_first_out_and_each_outcome_is_shown_before_the_next_begins():
    box = inbox("queue")
    assert ask(box, 0) == [Accept(accepted(0)), run(0)]
    for number in (1, 2):
        assert ask(box, number) == [Accept(accepted(number))]
    assert finish(box, 0) == [Publish(accepted(0), "outcome 0")]
    assert show(box, 0) == [Wake(), run(1)], "it does not wait for readers"
    assert settle(box, 1) == [Publish(accepted(1), "outcome 1"), Wake(), run(2)]
    assert finish(box, 2) == [Publish(accepted(2), "outcome 2")]
    assert (box.pending, box.unread) == (True, 2)
    show(box, 2)
    assert [read(box) for _ in range(4)] == ["outcome 0", "outcome 1", "outcome 2", None]


def test_a_thousand_queued_give_a_thousand_outcomes_in_order():
    box = inbox("queue")
    for number in range(1000):
        ask(box, number)
    assert box.queued == 999
    for number in range(1000):
        assert box.running == accepted(number)
        settle(box, number)
    assert not box.pending
    assert [read(box) for _ in range(1000)] == [f"outcome {number}" for number in range(1000)]
    assert counts(box) == {"accepted": 1000, "completed": 1000}


def test_latest_replaces_the_waiting_request_and_leaves_the_running_one():
    box = inbox("latest")
    assert ask(box, 0) == [Accept(accepted(0)), run(0)]
    assert ask(box, 1) == [Accept(accepted(1))]
    assert ask(box, 2) == [Accept(accepted(2)), Supersede(1)]
    assert not box.expects(1)
    assert settle(box, 0) == [Publish(accepted(0), "outcome 0"), Wake(), run(2)]
    settle(box, 2)
    assert [read(box) for _ in range(3)] == ["outcome 0", "outcome 2", None]
    assert counts(box) == {"accepted": 3, "completed": 2, "superseded": 1}


def test_latest_replaces_also_what_waits_for_an_outcome_to_be_shown():
    box = inbox("latest")
    ask(box, 0)
    ask(box, 1)
    finish(box, 0)
    assert ask(box, 2) == [Accept(accepted(2)), Supersede(1)]
    assert show(box, 0) == [Wake(), run(2)]


def test_latest_never_replaces_a_sync_request_nor_overtakes_one():
    box = inbox("latest")
    ask(box, 0)
    ask(box, 1)
    ask(box, 2, sync=True)
    assert ask(box, 3) == [Accept(accepted(3)), Supersede(1)]
    assert settle(box, 0)[-1] == run(2, sync=True)
    assert settle(box, 2)[-1] == run(3)


def test_latest_replaces_nothing_while_the_newer_one_is_not_complete():
    box = inbox("latest")
    ask(box, 0)
    ask(box, 1)
    assert box.handle(Asked(2)) == [Admit(2)]
    box.handle(Cancelled(2))
    assert box.expects(1)
    assert settle(box, 0)[-1] == run(1)
    assert counts(box) == {"accepted": 2, "completed": 1}


def test_what_is_superseded_or_cancelled_is_not_held():
    class Weights:
        pass

    def held_after(*, latest):
        box = inbox("latest" if latest else "queue")
        ask(box, 0)
        weights = Weights()
        box.handle(Asked(1))
        box.handle(Supplied(1, weights))
        reference = weakref.ref(weights)
        del weights
        assert reference() is not None
        if latest:
            ask(box, 2)
        else:
            box.handle(Cancelled())
        gc.collect()
        return reference()

    assert held_after(latest=True) is None
    assert held_after(latest=False) is None


def test_a_sync_request_waits_its_turn_and_gets_its_own_outcome_only():
    box = inbox("queue")
    ask(box, 0)
    assert ask(box, 1, sync=True) == [Accept(accepted(1, sync=True))]
    ask(box, 2)
    settle(box, 0)
    assert box.running == accepted(1, sync=True)
    assert read(box, 1) is None
    assert read(box, 0) is None, "async outcomes are not read by number"
    settle(box, 1)
    assert not box.expects(1)
    settle(box, 2)
    assert (box.unread, box.pending) == (2, False)
    assert [read(box), read(box), read(box)] == ["outcome 0", "outcome 2", None]
    assert read(box, 1) == "outcome 1"
    assert read(box, 1) is None
    assert box.at_rest


def test_of_two_waiters_for_one_outcome_one_gets_it_and_the_other_sees_that_nothing_is_pending():
    box = inbox()
    ask(box, 0)
    finish(box, 0)
    assert (read(box), box.pending) == (None, True)
    assert show(box, 0) == [Wake()]
    assert read(box) == "outcome 0"
    assert (read(box), box.pending) == (None, False)


def test_step_numbers_are_used_up_by_accepted_requests_that_have_none_of_their_own():
    box = inbox("skip")
    box.handle(Asked(0))
    box.handle(Cancelled(0))
    assert ask(box, 1)[0] == Accept(accepted(1, step=0))
    assert ask(box, 2) == [Skip()]
    settle(box, 1)
    assert ask(box, 3, step=40_000)[0] == Accept(accepted(3, step=40_000))
    assert ask(box, 4, sync=True)[0] == Accept(accepted(4, sync=True, step=1))
    assert box.step_counter == 2


def test_the_policy_version_counts_the_sets_of_weights_that_were_accepted():
    box = inbox("skip")
    assert ask(box, 0)[0].accepted.policy_version == 0
    assert ask(box, 1, weighted=True) == [Skip()]
    settle(box, 0)
    assert ask(box, 2, weighted=True)[0].accepted.policy_version == 1
    assert ask(box, 3, sync=True)[0].accepted.policy_version == 1
    assert ask(box, 4, sync=True, weighted=True)[0].accepted.policy_version == 2
    assert box.policy_version == 2


def test_without_reports_nobody_may_ask_while_too_much_is_unread_but_what_was_accepted_is_kept():
    box = inbox("queue", most_unread=2)
    for number in range(4):
        ask(box, number)
    for number in range(4):
        settle(box, number)
    assert box.unread == 4
    before = state(box)
    assert ask(box, 9) == [Refuse("unread", 4)]
    assert state(box) == before
    assert ask(box, 8, sync=True)[0] == Accept(accepted(8, sync=True, step=4))
    assert [read(box) for _ in range(2)] == ["outcome 0", "outcome 1"]
    assert ask(box, 9) == [Refuse("unread", 2)]
    assert read(box) == "outcome 2"
    assert ask(box, 10)[0] == Accept(accepted(10, step=5))
    assert box.count("dropped_results") == 0


def test_with_reports_the_oldest_unread_results_are_dropped_and_counted():
    box = inbox("error", reported=True)
    for number in range(MOST_UNREAD + 3):
        ask(box, number)
        settle(box, number)
    assert box.unread == MOST_UNREAD == 1024
    assert box.count("dropped_results") == 3
    assert read(box) == "outcome 3"


@pytest.mark.parametrize(
    ("failed", "left"),
    [
        ([True, False, False], [0, 2]),
        ([False, True, True], [1, 2]),
        ([True, True, False], [0, 1]),
        ([True, True, True], [1, 2]),
    ],
)
def test_errors_are_reported_to_nobody_so_they_are_dropped_last(failed, left):
    box = inbox("queue", reported=True, most_unread=2)
    for number, is_error in enumerate(failed):
        ask(box, number)
        settle(box, number, failed=is_error)
    assert [read(box), read(box), read(box)] == [*(f"outcome {number}" for number in left), None]
    assert box.count("dropped_results") == 1
