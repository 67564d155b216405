"""Each accepted request has one outcome or is counted, in the order of acceptance, for every order of calls."""

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


def add(queue, step=None, *, sync=False, **models):
    """Add a request with these models; return it if it is accepted."""
    sent = {name: SimpleNamespace(nbytes=0, name=value) for name, value in models.items()}
    request = QueuedEvaluation(step, sync, sent, has_new_weights=bool(sent))
    return request if queue.add(request) else None


def serve(queue, error=None):
    """Finish the running request and return it."""
    request = queue.active[0]
    if not queue.mark_played(request):
        error = KeyError("stopped")
    queue.finish(request, request.step, error)
    return request


def read(queue):
    return [queue.unread.popleft().result() for _ in range(len(queue.unread))]


def test_a_newer_sync_request_gets_the_weights_of_a_superseded_one():
    queue = EvalQueue("latest")
    add(queue)
    add(queue, policy="older", env="last")
    add(queue, sync=True, policy="newer")
    add(queue)
    sent = [{name: model.name for name, model in serve(queue).models.items()} for _ in range(3)]
    assert sent == [{}, {"policy": "newer", "env": "last"}, {}]


def test_without_on_result_too_many_unread_outcomes_refuse_the_next(monkeypatch):
    monkeypatch.setattr(module, "MAX_UNREAD", 2)
    queue = EvalQueue("queue")
    for _ in range(3):
        add(queue)
    for _ in range(3):
        serve(queue)
    with pytest.raises(SwathError, match=r"3 outcomes are unread.*poll\(\)"):
        add(queue)
    assert add(queue, sync=True) is not None
    assert read(queue) == [0, 1, 2]


def test_with_on_result_the_oldest_results_are_dropped_and_errors_are_kept(monkeypatch):
    monkeypatch.setattr(module, "MAX_UNREAD", 2)
    queue = EvalQueue("queue", drop_oldest=True)
    for number in range(4):
        add(queue)
        serve(queue, KeyError("mine") if number == 0 else None)
    assert queue.counts["dropped_results"] == 2
    with pytest.raises(KeyError, match="mine"):
        queue.unread.popleft().result()
    assert read(queue) == [3]


class Orders(RuleBasedStateMachine):
    """A queue, and a count of what happened to its requests."""

    def __init__(self, policy):
        super().__init__()
        self.policy = policy

    @initialize(drop_oldest=st.booleans())
    def begin(self, drop_oldest):
        self.queue = EvalQueue(self.policy, drop_oldest=drop_oldest)
        self.accepted, self.skipped, self.results = [], 0, 0

    @rule(sync=st.booleans())
    def ask(self, sync):
        queue, busy = self.queue, self.queue.pending
        try:
            request = add(queue, sync=sync)
        except SwathError:
            assert queue.closed or (busy and self.policy == "error" and not sync)
            return
        assert (request is None) == (not sync and busy and self.policy == "skip")
        self.skipped += request is None
        self.accepted += [] if request is None else [request]

    @precondition(lambda self: self.queue.active and not self.queue.active[0].played)
    @rule()
    def show(self):
        assert self.queue.mark_played(self.queue.active[0]) == (not self.queue.active[0].cancelled)

    @precondition(lambda self: self.queue.active and self.queue.active[0].played)
    @rule(failed=st.booleans())
    def finish(self, failed):
        request = self.queue.active[0]
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
        assert not [request for request in self.queue.waiting if not request.sync]

    @precondition(lambda self: self.accepted)
    @rule(which=st.integers(0, 40))
    def cancel_one(self, which):
        self.queue.cancel(self.accepted[which % len(self.accepted)])

    @precondition(lambda self: len(self.accepted) > 6)
    @rule()
    def close(self):
        self.queue.close()

    @invariant()
    def each_accepted_request_is_active_or_counted_once(self):
        counts = self.queue.counts
        ended = sum(counts[name] for name in ("completed", "errors", "superseded", "cancelled"))
        assert (
            counts["accepted"]
            == len(self.accepted)
            == ended + sum(not request.cancelled for request in self.queue.active)
        )
        assert counts["skipped"] == self.skipped
        assert len(self.queue.unread) == self.results

    @invariant()
    def the_oldest_runs_and_pending_is_as_defined(self):
        queue = self.queue
        indices = [self.accepted.index(request) for request in queue.active]
        assert indices == sorted(indices)
        pending = [request for request in queue.active if not request.cancelled and not request.sync]
        assert queue.pending == (bool(pending) and not queue.closed)
        assert self.policy != "latest" or len([request for request in queue.waiting if not request.sync]) <= 1


@pytest.mark.parametrize("policy", POLICIES)
def test_each_request_ends_once_and_in_order(policy):
    limits = settings(max_examples=50, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(lambda: Orders(policy), settings=limits)
