"""Whatever happens in whatever order: each accepted request has one outcome or is counted, each in its turn."""

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
from inbox_toys import POLICIES, inbox

from swath.evaluate.inbox_events import (
    Accept,
    Admit,
    Asked,
    Cancelled,
    Closed,
    Deliver,
    Drop,
    Finished,
    Publish,
    Published,
    Read,
    Refuse,
    Restored,
    Run,
    Skip,
    Stop,
    Supersede,
    Supplied,
    Wake,
)

MOST = 3
ANY = st.integers(0, 40)
STEPS = st.none() | st.integers(100, 200)


class Orders(RuleBasedStateMachine):
    """An inbox, and its requests as a bystander sees them who knows the instructions only."""

    def __init__(self, policy):
        super().__init__()
        self.policy = policy

    @initialize(reported=st.booleans())
    def begin(self, reported):
        self.reported = reported
        self.inbox = inbox(self.policy, reported=reported, most_unread=MOST)
        self.n_asked = self.n_skipped = self.n_counted_steps = self.n_dropped = 0
        self.admitted = []
        self.sync = {}
        self.fates = {}  # of accepted requests: waiting, running, stopping, done, shown, or how they ended
        self.failed = {}
        self.readable = []  # of async requests, in order
        self.own = set()
        self.deserted = set()  # whose callers have left
        self.last_run = -1
        self.places = {}  # by number: the how-many-th that was accepted
        self.closed = False

    def numbers(self, *fates, sync=None):
        return [
            number for number, fate in self.fates.items() if fate in fates and sync in (None, self.sync[number])
        ]  # fmt: skip

    def pick(self, numbers, which):
        return numbers[which % len(numbers)]

    def tell(self, event):
        """Carry the instructions out; what they have to do with nothing but this event is returned."""
        answers = []
        for instruction in self.inbox.handle(event):
            match instruction:
                case Run(accepted):
                    self.begins(accepted)
                case Publish(accepted, outcome):
                    self.is_shown(accepted.number, outcome)
                case Supersede(number):
                    assert self.policy == "latest"
                    assert not self.sync[number]
                    self.ends(number, "waiting", "superseded")
                case Drop(number):
                    self.ends(number, "waiting", "cancelled")
                case Stop(number):
                    self.ends(number, "running", "stopping")
                case Accept(accepted):
                    self.is_accepted(accepted)
                case _:
                    answers.append(instruction)
        return answers

    def is_accepted(self, accepted):
        self.fates[accepted.number] = "waiting"
        self.places[accepted.number] = len(self.places)
        self.admitted.remove(accepted.number)

    def begins(self, accepted):
        number = accepted.number
        assert not self.closed
        assert accepted.request == f"request {number}"
        assert self.numbers("running", "stopping") == [], "one at a time"
        assert self.fates[number] == "waiting"
        assert number == min(self.numbers("waiting"), key=self.places.__getitem__), "first in, first out"
        assert self.places[number] > self.last_run
        self.fates[number], self.last_run = "running", self.places[number]

    def is_shown(self, number, outcome):
        assert outcome == f"raw {number}"
        assert self.numbers("shown") == [], "one at a time"
        assert self.fates[number] == "done"
        assert number == min(self.numbers("done"), key=self.places.__getitem__)
        self.fates[number] = "shown"

    def ends(self, number, now, then):
        assert self.fates[number] == now
        self.fates[number] = then

    @rule(sync=st.booleans(), step=STEPS, weighted=st.booleans())
    def ask_and_supply(self, sync, step, weighted):
        self.ask(sync)
        if self.n_asked - 1 in self.admitted:
            self.supply(-1, step, weighted)

    @rule(sync=st.booleans(), step=STEPS, weighted=st.booleans())
    def ask_and_supply_again(self, sync, step, weighted):
        """As likely as all that ends requests."""
        self.ask_and_supply(sync, step, weighted)

    @rule(sync=st.booleans())
    def ask(self, sync):
        number, self.n_asked = self.n_asked, self.n_asked + 1
        self.sync[number] = sync
        expected = self.answer_to(number)
        assert self.tell(Asked(number, sync)) == [expected]
        self.n_skipped += expected == Skip()
        if expected == Admit(number):
            self.admitted.append(number)

    def answer_to(self, number):
        if self.closed:
            return Refuse("closed")
        pending = self.numbers("waiting", "running", "done", "shown", sync=False)
        busy = pending or [one for one in self.admitted if not self.sync[one]]
        if not self.sync[number] and busy and self.policy in ("error", "skip"):
            return Refuse("pending") if self.policy == "error" else Skip()
        if not self.sync[number] and not self.reported and len(self.readable) >= MOST:
            return Refuse("unread", len(self.readable))
        return Admit(number)

    @precondition(lambda self: self.admitted)
    @rule(which=ANY, step=STEPS, weighted=st.booleans())
    def supply(self, which, step, weighted):
        number = self.pick(self.admitted, which)
        version = self.inbox.policy_version
        replaceable = self.numbers("waiting", sync=False)
        assert self.tell(Supplied(number, f"request {number}", step, weighted)) == []
        assert self.inbox.policy_version == version + weighted
        self.n_counted_steps += step is None
        replaced = self.policy == "latest" and not self.sync[number]
        assert {self.fates[one] for one in replaceable} <= {"superseded" if replaced else "waiting"}

    @precondition(lambda self: self.numbers("running", "stopping"))
    @rule()
    def finish(self):
        (number,) = self.numbers("running", "stopping")
        self.fates[number] = "cancelled" if self.fates[number] == "stopping" else "done"
        assert self.tell(Finished(number, f"raw {number}")) == []

    @precondition(lambda self: self.numbers("shown"))
    @rule(failed=st.booleans())
    def publish(self, failed):
        (number,) = self.numbers("shown")
        self.fates[number], self.failed[number] = "outcome", failed
        assert self.tell(Published(number, f"outcome {number}", failed)) == [Wake()]
        if not self.sync[number]:
            self.keep(number)
        elif number not in self.deserted:
            self.own.add(number)

    def keep(self, number):
        self.readable.append(number)
        if self.reported and len(self.readable) > MOST:
            results = [one for one in self.readable if not self.failed[one]]
            self.readable.remove((results or self.readable)[0])
            self.n_dropped += 1

    @rule()
    def read(self):
        assert self.tell(Read()) == [Deliver(f"outcome {number}") for number in self.readable[:1]]
        del self.readable[:1]

    @precondition(lambda self: self.numbers("outcome", sync=True))
    @rule(which=ANY)
    def read_own(self, which):
        number = self.pick(self.numbers("outcome", sync=True), which)
        self.read_of(number)

    def read_of(self, number):
        assert self.tell(Read(number)) == ([Deliver(f"outcome {number}")] if number in self.own else [])
        self.own.discard(number)

    @precondition(lambda self: self.n_asked > 2)
    @rule(which=ANY)
    def cancel_one(self, which):
        number = which % self.n_asked
        open_ = self.fates.get(number) in ("waiting", "running")
        assert self.tell(Cancelled(number)) == ([Wake()] if open_ else [])
        assert self.fates.get(number) not in ("waiting", "running")
        self.own.discard(number)
        self.deserted.add(number)
        self.admitted = [one for one in self.admitted if one != number]

    @precondition(lambda self: self.n_asked > 4)
    @rule()
    def cancel_all(self):
        open_ = self.numbers("waiting", "running", sync=False)
        assert self.tell(Cancelled()) == ([Wake()] if open_ else [])
        assert self.numbers("waiting", "running", sync=False) == []

    @precondition(lambda self: self.n_asked > 8)
    @rule()
    def close(self):
        self.closed = True
        assert self.tell(Closed()) == [Wake()]
        assert self.numbers("waiting", "running") == []
        self.admitted.clear()
        self.deserted.update(self.fates)

    @invariant()
    def requests_are_pending_as_defined(self):
        unreadable = self.numbers("waiting", "running", "done", "shown", sync=False)
        assert self.inbox.pending == (bool(unreadable) and not self.closed)
        assert self.inbox.queued == len(self.numbers("waiting"))
        assert self.inbox.unread == len(self.readable)
        assert self.policy != "latest" or len(self.numbers("waiting", sync=False)) <= 1

    @invariant()
    def the_workers_are_idle_only_while_an_outcome_is_shown(self):
        busy = self.numbers("running", "stopping")
        shown = self.numbers("shown")
        assert busy or shown or not self.numbers("waiting")
        assert not (busy and shown)
        assert [self.inbox.running.number] == busy if self.inbox.running else busy == []
        assert bool(self.numbers("shown")) or not self.numbers("done")

    @invariant()
    def each_accepted_request_is_on_its_way_or_counted_once(self):
        on_its_way = self.numbers("waiting", "running", "done", "shown")
        count = self.inbox.count
        ended = [count(what) for what in ("completed", "errors", "superseded", "cancelled")]
        assert count("accepted") == len(self.fates) == len(on_its_way) + sum(ended)
        assert count("completed") + count("errors") == len(self.numbers("outcome"))
        assert count("errors") == sum(self.failed.values())
        assert count("superseded") == len(self.numbers("superseded"))
        assert (count("skipped"), count("dropped_results")) == (self.n_skipped, self.n_dropped)
        assert self.inbox.step_counter == self.n_counted_steps

    @invariant()
    def news_that_come_too_early_or_too_late_change_nothing(self):
        for number in self.sync:
            if self.fates.get(number) not in ("running", "stopping"):
                assert self.inbox.handle(Finished(number, "late")) == []
            if self.fates.get(number) != "shown":
                assert self.inbox.handle(Published(number, "late")) == []

    @invariant()
    def counts_can_be_restored_at_rest_only(self):
        answer = self.inbox.handle(Restored(self.inbox.step_counter, self.inbox.policy_version))
        at_work = self.admitted or self.numbers("waiting", "running", "done", "shown") or self.readable or self.own
        assert answer == ([Refuse("at work")] if at_work else [])

    def teardown(self):
        """Let all that is on its way reach its end."""
        newest = max(self.numbers("waiting", sync=False), key=self.places.__getitem__, default=None)
        while self.numbers("running", "stopping", "shown"):
            if self.numbers("shown"):
                self.publish(failed=False)
            else:
                self.finish()
        while self.readable:
            self.read()
        for number in sorted(self.own):
            self.read_of(number)
        assert not self.own
        assert set(self.fates.values()) <= {"outcome", "superseded", "cancelled"}
        assert newest is None or self.fates[newest] == "outcome", "the newest always runs"
        assert self.inbox.at_rest or self.admitted
        assert not self.inbox.pending


@pytest.mark.parametrize("policy", POLICIES)
def test_whatever_happens_each_request_ends_once_and_in_its_turn(policy):
    ways = settings(max_examples=50, stateful_step_count=50, deadline=None)
    run_state_machine_as_test(lambda: Orders(policy), settings=ways)
