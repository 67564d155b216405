"""Whatever happens in whatever order: each accepted request has one outcome or is counted, each in its turn."""

from types import SimpleNamespace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from swath.errors import SwathError
from swath.evaluation import queue as module
from swath.evaluation.queue import EvalQueue, QueuedEvaluation

POLICIES = ("error", "queue", "skip", "latest")


def asked(queue, step=None, *, sync=False, **models):
    """The request, if it is accepted; models by id, as words."""
    sent = {name: SimpleNamespace(nbytes=0, name=value) for name, value in models.items()}
    request = QueuedEvaluation(step, sync, sent, weighted=bool(sent))
    return request if queue.add(request) else None


def serve(queue, error=None):
    """What runs is played, shown and finished."""
    request = queue.live[0]
    if not queue.show(request):
        error = KeyError("stopped")
    queue.finish(request, request.step, error)
    return request


def read(queue):
    return [queue.unread.popleft().result() for _ in range(len(queue.unread))]


def test_weights_of_a_request_that_is_replaced_do_not_act_behind_newer_ones_that_somebody_waits_for():
    queue = EvalQueue("latest")
    asked(queue)
    asked(queue, policy="older", env="last")
    asked(queue, sync=True, policy="newer")
    asked(queue)
    sent = [{name: model.name for name, model in serve(queue).models.items()} for _ in range(3)]
    assert sent == [{}, {"policy": "newer", "env": "last"}, {}]


def test_without_on_result_too_many_unread_outcomes_refuse_the_next(monkeypatch):
    monkeypatch.setattr(module, "MOST_UNREAD", 2)
    queue = EvalQueue("queue")
    for _ in range(3):
        asked(queue)
    for _ in range(3):
        serve(queue)
    with pytest.raises(SwathError, match=r"3 outcomes are unread.*poll\(\)"):
        asked(queue)
    assert asked(queue, sync=True) is not None
    assert read(queue) == [0, 1, 2]


def test_with_on_result_the_oldest_results_are_dropped_and_errors_are_kept(monkeypatch):
    monkeypatch.setattr(module, "MOST_UNREAD", 2)
    queue = EvalQueue("queue", reported=True)
    for number in range(4):
        asked(queue)
        serve(queue, KeyError("mine") if number == 0 else None)
    assert queue.counts["dropped_results"] == 2
    with pytest.raises(KeyError, match="mine"):
        queue.unread.popleft().result()
    assert read(queue) == [3]


class Orders(RuleBasedStateMachine):
    """A queue, and what has become of each of its requests."""

    def __init__(self, policy):
        super().__init__()
        self.policy = policy

    @initialize(reported=st.booleans())
    def begin(self, reported):
        self.queue = EvalQueue(self.policy, reported=reported)
        self.accepted, self.skipped, self.results = [], 0, 0

    @rule(sync=st.booleans())
    def ask(self, sync):
        queue, busy = self.queue, self.queue.pending
        try:
            request = asked(queue, sync=sync)
        except SwathError:
            assert queue.closed or (busy and self.policy == "error" and not sync)
            return
        assert (request is None) == (not sync and busy and self.policy == "skip")
        self.skipped += request is None
        self.accepted += [] if request is None else [request]

    @precondition(lambda self: self.queue.live and not self.queue.live[0].shown)
    @rule()
    def show(self):
        assert self.queue.show(self.queue.live[0]) == (not self.queue.live[0].cancelled)

    @precondition(lambda self: self.queue.live and self.queue.live[0].shown)
    @rule(failed=st.booleans())
    def finish(self, failed):
        request = self.queue.live[0]
        self.queue.finish(request, request.step, KeyError() if failed else None)
        self.results += not request.cancelled and not request.sync

    @precondition(lambda self: self.queue.unread)
    @rule()
    def read(self):
        self.queue.unread.popleft()
        self.results -= 1

    @rule()
    def cancel(self):
        self.queue.cancel()
        assert not [one for one in self.queue.waiting if not one.sync]

    @precondition(lambda self: self.accepted)
    @rule(which=st.integers(0, 40))
    def cancel_one(self, which):
        self.queue.cancel(self.accepted[which % len(self.accepted)])

    @precondition(lambda self: len(self.accepted) > 6)
    @rule()
    def close(self):
        self.queue.close()

    @invariant()
    def each_accepted_request_is_on_its_way_or_counted_once(self):
        counts = self.queue.counts
        ended = sum(counts[what] for what in ("completed", "errors", "superseded", "cancelled"))
        assert counts["accepted"] == len(self.accepted) == ended + sum(not one.cancelled for one in self.queue.live)
        assert counts["skipped"] == self.skipped
        assert len(self.queue.unread) == self.results

    @invariant()
    def the_oldest_runs_and_pending_is_as_defined(self):
        queue = self.queue
        places = [self.accepted.index(one) for one in queue.live]
        assert places == sorted(places)
        live = [one for one in queue.live if not one.cancelled and not one.sync]
        assert queue.pending == (bool(live) and not queue.closed)
        assert self.policy != "latest" or len([one for one in queue.waiting if not one.sync]) <= 1


@pytest.mark.parametrize("policy", POLICIES)
def test_whatever_happens_each_request_ends_once_and_in_its_turn(policy):
    ways = settings(max_examples=50, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(lambda: Orders(policy), settings=ways)
