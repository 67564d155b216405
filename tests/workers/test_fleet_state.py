"""Who lives, who comes back and when, and when too few are left: what has happened goes in, what is due comes out."""

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


def begin(fleet, at=0.0):
    """Begin what is to be begun."""
    names = fleet.due("waiting", at)
    for name in names:
        fleet.started(name, at)
    return names


def up(n=1, at=0.0, **options):
    """A fleet whose workers are all up."""
    made = state(n, **options)
    for name in begin(made, at):
        made.ready(name, at)
    return made


def die(fleet, worker=0, *, at=0.0, cause=BOOM):
    """The end of a worker's present life; what is begun at once."""
    fleet.died(Name(worker, fleet.workers[worker].life), cause, at)
    return begin(fleet, at)


def ready(fleet, worker=0, *, at=0.0):
    fleet.ready(Name(worker, fleet.workers[worker].life), at)


def gone(fleet):
    return [worker for worker, standing in fleet.workers.items() if standing.phase == "gone"]


def test_the_time_of_a_replacement_to_be_ready_counts_from_when_it_was_placed():
    survival = Survival(
        Restarts(backoff_s=0.0), fragment_timeout_s=None, placement_timeout_s=10.0, start_timeout_s=100.0
    )
    fleet = FleetState(1, survival)
    begin(fleet)
    die(fleet)
    fleet.placed(Name(0, 1), 9.0)
    assert fleet.due_at == 109.0
    assert fleet.due("starting", 109.0) == [Name(0, 1)]
    die(fleet, at=109.0)
    assert not fleet.workers[0].placed, "the next life is to be placed first"


def test_replacements_of_all_together_are_limited_too():
    fleet = up(3, min_workers=1, max_per_worker=5, max_total=2)
    assert die(fleet, 0) == [Name(0, 1)]
    assert die(fleet, 1) == [Name(1, 1)]
    for worker, left in ((2, [2]), (0, [0, 2]), (1, [0, 1, 2])):
        assert fleet.causes is None
        assert die(fleet, worker) == []
        assert gone(fleet) == left
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


def test_what_is_forgiven_counts_neither_for_a_worker_nor_for_all_nor_as_a_cause():
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
def test_whatever_happens_lives_follow_each_other_and_limits_hold(survival, events):
    fleet, now, causes = FleetState(3, survival), 0.0, None
    begun, placed = {}, {}
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
            begun[Name(len(fleet.workers) - 1, 0)] = now
        for life in fleet.due("starting", now):
            if fleet.waits_for_room(life):
                assert survival.waits_for_room
                assert life not in placed
                assert now >= begun[life] + REPORT_S
                fleet.started(life, now)
            else:
                assert life.life > 0
                assert now >= placed.get(life, begun[life]) + survival.placement_timeout_s
                fleet.died(life, BOOM, now)
        for life in begin(fleet, now):
            assert causes is None
            assert life not in begun, "begun twice"
            assert life.life == 0 or Name(life.worker, life.life - 1) in begun, "a life was left out"
            begun[life] = now
        assert causes in (None, fleet.causes), "the run has ended once"
        assert causes or not fleet.causes or fleet.remaining < fleet.required
        causes = fleet.causes
        assert all(one.restarts <= survival.restarts.max_per_worker for one in fleet.workers.values())
        assert fleet.due_at > now
    most = survival.restarts.max_total
    assert most is None or fleet.restarts <= most
    assert fleet.restarts == sum(one.life for one in fleet.workers.values())
