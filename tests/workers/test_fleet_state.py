"""The state machine of a fleet: events go in, due actions come out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swath.options import Restarts, Survival
from swath.workers.fleet_state import REPORT_S, FleetState, WorkerStatus
from swath.workers.tickets import Name

BOOM = RuntimeError("boom")


def state(n=1, *, min_workers=None, placement_timeout_s=None, **restarts):
    survival = Survival(
        Restarts(**restarts), min_workers=min_workers, fragment_timeout_s=None, placement_timeout_s=placement_timeout_s
    )
    return FleetState(n, survival)


def start(fleet, at=0.0):
    """Start the lives that are due."""
    names = fleet.due("waiting", at)
    for name in names:
        fleet.started(name, at)
    return names


def up(n=1, at=0.0, **options):
    """Return a fleet whose workers are all up."""
    fleet = state(n, **options)
    for name in start(fleet, at):
        fleet.ready(name, at)
    return fleet


def die(fleet, worker=0, *, at=0.0, cause=BOOM):
    """End a worker's present life; return the lives that start at once."""
    fleet.died(Name(worker, fleet.workers[worker].life), cause, at)
    return start(fleet, at)


def ready(fleet, worker=0, *, at=0.0):
    fleet.ready(Name(worker, fleet.workers[worker].life), at)


def gone(fleet):
    return [worker for worker, status in fleet.workers.items() if status.phase == "gone"]


def test_the_start_time_of_a_replacement_counts_from_its_place():
    survival = Survival(
        Restarts(backoff_s=0.0), fragment_timeout_s=None, placement_timeout_s=10.0, start_timeout_s=100.0
    )
    fleet = FleetState(1, survival)
    start(fleet)
    die(fleet)
    fleet.placed(Name(0, 1), 9.0)
    assert fleet.due_at == 109.0
    assert fleet.due("starting", 109.0) == [Name(0, 1)]
    die(fleet, at=109.0)
    assert not fleet.workers[0].placed, "the next life needs a place first"


def test_restarts_of_all_workers_are_limited_together():
    fleet = up(3, min_workers=1, max_per_worker=5, max_total=2)
    assert die(fleet, 0) == [Name(0, 1)]
    assert die(fleet, 1) == [Name(1, 1)]
    for worker, lost in ((2, [2]), (0, [0, 2]), (1, [0, 1, 2])):
        assert fleet.causes is None
        assert die(fleet, worker) == []
        assert gone(fleet) == lost
    assert fleet.causes == (BOOM,) * 5


FORGIVING = {
    "a long life": (600.0, 600.0, True),
    "a life not long enough": (600.0, 599.9, False),
    "never": (None, 1e9, False),
}


@pytest.mark.parametrize(("forgive_after_s", "lived", "forgiven"), FORGIVING.values(), ids=FORGIVING)
def test_a_long_life_clears_the_count(forgive_after_s, lived, forgiven):
    fleet = up(max_per_worker=1, forgive_after_s=forgive_after_s)
    die(fleet, at=0.0)
    ready(fleet, at=50.0)
    assert die(fleet, at=50.0 + lived) == ([Name(0, 2)] if forgiven else [])
    assert (fleet.causes is None) == forgiven


def test_forgiven_restarts_count_neither_for_a_worker_nor_for_all_nor_as_a_cause():
    fleet = up(2, max_per_worker=1, max_total=1, min_workers=1, backoff_s=0.0)
    die(fleet, 0, cause=KeyError("forgiven"))
    ready(fleet, 0)
    fleet.forgive()
    assert fleet.workers[0] == WorkerStatus(1, "up", 0.0, 0)
    assert die(fleet, 0, at=2.0) == [Name(0, 2)]
    assert fleet.restarts == 2
    assert die(fleet, 1, at=3.0) == []
    fleet.forgive()
    assert gone(fleet) == [1]
    assert die(fleet, 0, at=5.0) == [Name(0, 3)]
    assert die(fleet, 0, at=6.0) == []
    assert fleet.causes == (BOOM, BOOM, BOOM)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["placed", "ready", "died", "last", "added", "nothing", "nothing"]),
        st.integers(0, 3),
        st.sampled_from([0.0, 0.3, 1.0, 20.0, 70.0]),
    ),
    max_size=60,
)
SURVIVALS = st.builds(
    Survival,
    st.builds(
        Restarts,
        max_per_worker=st.integers(0, 3),
        max_total=st.none() | st.integers(0, 6),
        backoff_s=st.sampled_from([0.0, 0.5, 5.0]),
        forgive_after_s=st.sampled_from([None, 0.0, 10.0]),
    ),
    min_workers=st.none() | st.integers(1, 3),
    placement_timeout_s=st.sampled_from([None, 15.0]),
    waits_for_room=st.booleans(),
)


@given(SURVIVALS, EVENTS)
def test_after_any_events_lives_follow_each_other_and_limits_hold(survival, events):
    fleet, now, causes = FleetState(3, survival), 0.0, None
    started, placed = {}, {}
    for kind, number, passing in [("nothing", 0, 0.0), *events]:
        now += passing
        worker = number % len(fleet.workers)
        name = Name(worker, fleet.workers[worker].life)
        if kind in ("placed", "ready") and fleet.workers[worker].phase == "starting":
            getattr(fleet, kind)(name, now)
            placed.setdefault(name, now)
        elif kind in ("died", "last") and fleet.is_alive(name):
            fleet.died(name, BOOM, now, last=kind == "last")
            assert kind == "died" or fleet.workers[worker].phase == "gone"
        elif kind == "added":
            fleet.added(now)
            started[Name(len(fleet.workers) - 1, 0)] = now
        for life in fleet.due("starting", now):
            if fleet.waits_for_room(life):
                assert survival.waits_for_room
                assert life not in placed
                assert now >= started[life] + REPORT_S
                fleet.started(life, now)
            else:
                assert life.life > 0
                assert now >= placed.get(life, started[life]) + survival.placement_timeout_s
                fleet.died(life, BOOM, now)
        for life in start(fleet, now):
            assert causes is None
            assert life not in started, "started twice"
            assert life.life == 0 or Name(life.worker, life.life - 1) in started, "a life was left out"
            started[life] = now
        assert causes in (None, fleet.causes), "the run has ended once"
        assert causes or not fleet.causes or fleet.remaining < fleet.required
        causes = fleet.causes
        assert all(status.restarts <= survival.restarts.max_per_worker for status in fleet.workers.values())
        assert fleet.due_at > now
    max_total = survival.restarts.max_total
    assert max_total is None or fleet.restarts <= max_total
    assert fleet.restarts == sum(status.life for status in fleet.workers.values())
