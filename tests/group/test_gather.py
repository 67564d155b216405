"""Whatever befalls workers, what a group gathers is what was asked for: whole, once, and in order."""

import logging
from collections import Counter
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from staged import NEVER, Staged, job
from swath.collectors.gather import AsReady, Fragments, InOrder
from swath.collectors.jobs import WorkerJobs
from swath.collectors.options import AnyOptions
from swath.errors import FleetFailed, WorkerLost
from swath.group.group import Counters, Member
from swath.options import Restarts, Survival
from swath.rollout.episodes.statistics import EPISODE_DTYPE
from swath.weights.channel import Channel
from swath.workers.fleet import Fleet
from swath.workers.outcome import Error, Value
from swath.workers.tickets import Name

N, DEADLINE_S = 3, 20.0
NAMES = st.builds(Name, st.integers(0, N - 1), st.integers(0, 3))
FATES = {
    "starts": st.dictionaries(NAMES, st.sampled_from([0.0, 4.0, NEVER, (OSError("no more processes"),)]), max_size=4),
    "dies": st.dictionaries(NAMES, st.sampled_from([0.0, 0.5, 1.0, 7.0]), max_size=5),
    "hangs": st.sets(NAMES, max_size=3),
}
SURVIVALS = st.builds(
    Survival,
    st.builds(Restarts, max_per_worker=st.integers(0, 3), backoff_s=st.sampled_from([0.0, 2.0])),
    min_workers=st.none() | st.integers(1, N),
    fragment_timeout_s=st.just(DEADLINE_S),
    placement_timeout_s=st.just(30.0),
)
DRAWS = 6


@pytest.fixture(autouse=True)
def quiet():
    """Silence the log of thousands of restarts."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


class Scripted(Staged):
    """Members that answer with their name and the version of their weights; some of their answers are exceptions.

    Attributes:
        failing: `(worker, number of its request)` whose answer is an exception.
    """

    def __init__(self, failing=()):
        super().__init__()
        self.failing, self.asked, self.versions = set(failing), Counter(), {}

    def reply(self, handle, method, args):
        if method != "answer":
            return super().reply(handle, method, args)
        update, inner, *_ = args
        if update is not None:
            self.versions[handle] = update.version
        self.asked[handle.name.worker] += 1
        if (handle.name.worker, self.asked[handle.name.worker]) in self.failing:
            return Error(ArithmeticError(inner))
        return Value((handle.name, inner, self.versions.get(handle, 0)))


class Shares(Fragments):
    """Requests a number of rounds, or replies, and accepts every reply."""

    def __init__(self, fleet, channel, left):
        jobs = WorkerJobs(AnyOptions("CartPole-v1", frames_per_batch=1), [])
        super().__init__(fleet, channel, jobs, dict.fromkeys(range(N), 1), lambda: None)
        self.left = left

    @property
    def wants_more(self):
        return self.left > 0 and not self.pause_count

    def draw_random(self):
        self.left -= 1
        return False

    def return_random(self, randomly):
        assert not randomly
        self.left += 1

    def drop_if_stale(self, request):
        return False

    def accept(self, request):
        return True

    def note_loss(self, request):
        pass

    def note_unwanted(self, request):
        pass


def group_of(stage, left=0, survival=None):
    fleet = Fleet(stage, job, N, survival or Survival(), stage.clock)
    fleet.start()
    return Shares(fleet, Channel(stage.share), left)


def draw(gather, group):
    """Wait for the next requests and close them, as a service does; `None` if none are expected."""
    while True:
        membership = group.fleet.event_count
        if (requests := gather.next_requests()) is not None:
            gather.request_ahead()
            gather.finish()
            for request in requests:
                group.close(request)
            return requests
        group.require_enough_workers()
        if (waiting := gather.request_missing()) is None:
            return None
        group.wait(waiting, lambda: False, membership)


ALL_FATES = FATES | {
    "failing": st.sets(st.tuples(st.integers(0, N - 1), st.integers(1, 8)), max_size=3),
    "publishes": st.sets(st.integers(0, DRAWS), max_size=4),
    "forgets": st.dictionaries(
        st.integers(0, DRAWS), st.none() | st.sets(st.integers(0, N - 1), min_size=1), max_size=2
    ),
}


def play(kind, survival, ahead, fates):
    """Return the group, the drawn requests, the number of exceptions, and whether too few workers are left."""
    stage = Scripted(fates["failing"])
    group = group_of(stage, DRAWS, survival)
    gather = kind(group, ahead)
    stage.starts, stage.dies = fates["starts"], fates["dies"]
    stage.takes = {(name, "answer"): NEVER for name in fates["hangs"]}
    for name, seconds in stage.dies.items():
        if name.life == 0:
            stage.at(seconds, partial(stage.end, group.fleet.handle(name.worker)))
    got, raised = [], 0
    for number in range(10 * DRAWS):
        if number in fates["publishes"]:
            group.channel.publish({})
        if number in fates["forgets"]:
            gather.drop(fates["forgets"][number])
        try:
            requests = draw(gather, group)
        except ArithmeticError:
            raised += 1
            continue
        except FleetFailed:
            group.fleet.close(0.0)
            return group, got, raised, True
        if requests is None:
            break
        got.append(requests)
    assert not group.open_requests(), "requests are open after the last draw"
    faults = sum(map(len, fates.values()))
    assert stage.now <= 10 * DRAWS + faults * (30.0 + DEADLINE_S + 4.0), "it waited for longer than it had to"
    group.fleet.close(0.0)
    return group, got, raised, False


def check_once_and_in_order(got):
    """Check that no reply comes twice, and that order and versions of one life's replies only grow."""
    numbers, versions, seen = {}, {}, set()
    for request in (request for requests in got for request in sorted(requests, key=lambda one: one.number)):
        assert id(request) not in seen
        seen.add(id(request))
        name, _, version = request.reply
        assert name == request.name
        assert request.number > numbers.get(name, 0)
        assert version >= versions.get(name, 0)
        numbers[name], versions[name] = request.number, version


@pytest.mark.parametrize("kind", [InOrder, AsReady])
@given(SURVIVALS, st.integers(0, 2), st.fixed_dictionaries(ALL_FATES))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
def test_rounds_and_replies_are_whole_once_and_in_order(kind, survival, ahead, fates):
    group, got, raised, failed = play(kind, survival, ahead, fates)
    assert all(len(requests) == (N if kind is InOrder else 1) for requests in got)
    check_once_and_in_order(got)
    gone = {worker for worker in range(N) if group.is_gone(worker)}
    for requests in got if kind is InOrder else []:
        assert all(request.worker == row for row, request in enumerate(requests) if row not in gone)
    assert failed or len(got) == DRAWS
    assert raised <= len(fates["failing"])


@pytest.mark.parametrize("kind", [InOrder, AsReady])
def test_requests_that_are_put_back_come_again_but_for_those_that_were_lost(kind):
    group = group_of(Scripted(), 1)
    gather = kind(group, 0)
    while (first := gather.next_requests()) is None:
        group.wait(gather.request_missing(), lambda: False, group.fleet.event_count)
    group.close(first[0])
    gather.put_back(first)
    again = draw(gather, group)
    assert again[0] is not first[0]
    assert again[0].worker == first[0].worker
    assert again[1:] == first[1:]


def test_no_requests_are_made_while_the_group_is_paused():
    group = group_of(Scripted(), 2)
    gather = AsReady(group, 1)
    group.pause()
    assert draw(gather, group) is None
    group.resume()
    assert draw(gather, group) is not None


# ---- calls between requests


def test_workers_that_die_give_no_answer_and_those_that_come_back_are_waited_for():
    stage = Scripted()
    group = group_of(stage)
    stage.starts = {1: 5.0}
    stage.at(0.5, partial(stage.end, group.fleet.handle(1)))
    assert group.call("state").keys() == {0, 2}
    assert group.call_each(group.to_all("state"))[1] == (Name(1, 1), "state", 0)


def test_the_first_that_is_left_answers():
    stage = Scripted()
    group = group_of(stage, survival=Survival(Restarts(0), min_workers=1))
    group.fleet.replace(Name(0, 0), WorkerLost("it is gone"))
    assert group.call_first("state")[0] == Name(1, 0)
    for worker in (1, 2):
        group.fleet.replace(Name(worker, 0), WorkerLost("it is gone"))
    with pytest.raises(FleetFailed):
        group.call_first("state")


class Toy(Member):
    """Takes weights that are numbers."""

    def __init__(self):
        self.weights, self.version = {}, 0

    def apply_weights(self, models, version):
        if "bad" in models:
            raise ValueError("it does not fit")
        self.weights.update(models)
        self.version = version

    def ask(self, more=0):
        return self.version + more


def test_a_member_whose_weights_do_not_fit_is_replaced_and_its_request_is_lost():
    class Real(Scripted):
        """Toys."""

        def reply(self, handle, method, args):
            answer = getattr(self.versions.setdefault(handle, Toy()), method)(*args)
            return answer if isinstance(answer, Error) else Value(answer)

    group = group_of(Real())
    assert group.call("ask", 2) == {0: 2, 1: 2, 2: 2}
    group.channel.publish({"good": 1})
    assert set(group.call("ask").values()) == {1}
    group.channel.publish({"bad": 1}, [1])
    assert group.call("ask") == {0: 1, 2: 1}
    assert group.fleet.restarts == 1


# ---- totals of a collection


def test_frames_that_are_restored_were_not_delivered_since_the_first_draw(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("swath.group.group.time.monotonic", lambda: now[0])
    counters = Counters()
    counters.start_clock()
    counters.deliver(30)
    counters.restore(1000, 50)
    now[0] += 2
    assert (counters.frames, counters.batches, counters.fps) == (1000, 50, 15)
    counters.deliver(10)
    assert counters.fps == 20


def test_a_part_of_a_batch_has_frames_alone_and_means_are_over_episodes():
    counters = Counters()
    counters.deliver(8)
    counters.deliver(2, batches=0)
    counters.episodes.add(np.array([(0, 3.0, 5), (1, 1.0, 1)], EPISODE_DTYPE))
    assert (counters.frames, counters.batches, counters.episodes.finished) == (10, 1, 2)
    assert counters.episodes.means == (2, 3)
