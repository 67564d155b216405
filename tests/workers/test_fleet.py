"""Each row of the fault table, for a fleet on a staged backend whose clock costs no time."""

import logging

import pytest

from staged import NEVER, Staged, job, lives_of
from swath.errors import Closed, FleetFailed, PlacementFailed, WorkerLate, WorkerLost
from swath.options import Restarts, Survival
from swath.workers.fleet import Fleet
from swath.workers.tickets import Name


@pytest.fixture
def stage():
    return Staged()


@pytest.fixture
def make_fleet(stage):
    """Return a function that makes a fleet on the staged backend."""

    def make_fleet(n=2, *, up=True, **options):
        fleet = Fleet(stage, job, n, Survival(**options), stage.clock)
        if up:
            fleet.start()
        return fleet

    return make_fleet


def lost(fleet):
    return [worker for worker, status in fleet.statuses().items() if status.phase == "gone"]


def ask(fleet, worker, method="collect", **options):
    return fleet.call(fleet.up[worker], method, **options)


def answer(fleet, ticket):
    while not ticket.done:
        fleet.wait([ticket])
    return ticket.value


def wait_without_end(fleet):
    while True:
        fleet.wait([])


def wait_for(fleet, worker):
    while worker not in fleet.up:
        fleet.wait([])
    return fleet.up[worker]


def test_an_exception_of_a_build_is_raised_and_nothing_is_left(stage, make_fleet):
    stage.starts = {0: 3.0, 1: ValueError("unknown env")}
    fleet = make_fleet(2, up=False)
    with pytest.raises(ValueError, match="unknown env"):
        fleet.start()
    assert stage.closed
    assert len(stage.spawned) == 2, "no worker is replaced"
    with pytest.raises(Closed):
        fleet.wait([])


def test_too_few_workers_in_time_is_an_error_that_names_the_resources(stage, make_fleet):
    stage.starts = {1: NEVER, 2: NEVER}
    with pytest.raises(PlacementFailed, match=r"2 of 3 workers \(1, 2\) were not ready after .*=30") as failed:
        make_fleet(3, placement_timeout_s=30.0)
    assert (failed.value.asked, failed.value.available) == ("room for 1", "none")
    assert stage.now == 30.0
    assert stage.closed


def test_enough_workers_in_time_go_on_with_a_warning_and_the_others_join_later(stage, make_fleet):
    stage.starts = {1: 50.0}
    fleet = make_fleet(3, up=False, placement_timeout_s=30.0, min_workers=2)
    with pytest.warns(UserWarning, match=r"1 of 3 workers \(1\) were not ready .*the others begin without them"):
        fleet.start()
    assert list(fleet.up) == [0, 2]
    known = fleet.event_count
    assert fleet.wait([]) == []
    assert (stage.now, sorted(fleet.up)) == (50.0, [0, 1, 2])
    assert fleet.event_count > known


def test_a_worker_that_dies_is_replaced_at_once_and_its_calls_are_answered_with_its_loss(stage, make_fleet, caplog):
    fleet = make_fleet(2)
    handle, ticket = fleet.up[0], ask(fleet, 0)
    stage.at(0.5, lambda: stage.end(handle, "was killed by signal 9"))
    with caplog.at_level(logging.WARNING, "swath"):
        assert fleet.wait([ticket]) == [ticket]
    with pytest.raises(WorkerLost, match="signal 9"):
        _ = ticket.value
    assert stage.spawned[2:] == [(Name(0, 1), 0.5)]
    assert caplog.messages == [
        "worker 0 (life 0) was killed by signal 9; life 1 begins at once (restart 1 of 3)",
    ]
    assert list(fleet.up) == [1]
    fleet.wait([])
    assert fleet.up[0].name == Name(0, 1)
    assert (fleet.restarts, lost(fleet), fleet.late) == (1, [], set())


def test_later_replacements_wait_up_to_the_longest_pause(stage, make_fleet, caplog):
    fleet = make_fleet(1, restarts=Restarts(3, backoff_s=4.0, backoff_max_s=6.0))
    stage.dies = dict.fromkeys(lives_of(0, 9), 0.25)
    stage.end(fleet.up[0])
    with caplog.at_level(logging.WARNING, "swath"), pytest.raises(FleetFailed):
        wait_without_end(fleet)
    assert stage.spawned == [(Name(0, 0), 0.0), (Name(0, 1), 0.0), (Name(0, 2), 4.25), (Name(0, 3), 10.5)]
    assert [message.partition("; ")[2] for message in caplog.messages] == [
        "life 1 begins at once (restart 1 of 3)",
        "life 2 begins in 4 s (restart 2 of 3)",
        "life 3 begins in 6 s (restart 3 of 3)",
        "it is given up after 3 restarts; 0 workers are left",
    ]


def test_a_wait_ends_after_its_timeout_or_when_interrupted(stage, make_fleet):
    fleet = make_fleet(1)
    stage.takes["collect"] = 50.0
    ticket = ask(fleet, 0)
    assert fleet.wait([ticket], timeout=7.0) == []
    assert stage.now == 7.0
    assert fleet.wait([ticket], interrupted=lambda: True) == []
    assert stage.now == 7.0
    assert fleet.wait([ticket]) == [ticket]
    assert stage.now == 50.0


def test_with_too_few_workers_left_answers_come_first_then_the_failure_every_time(stage, make_fleet):
    fleet = make_fleet(2, restarts=Restarts(0))
    finished, running = ask(fleet, 1), ask(fleet, 1)
    stage.wait([finished])
    stage.end(fleet.up[0], "ran out of memory")
    assert fleet.wait([finished, running]) == [finished]
    for _ in range(2):
        with pytest.raises(FleetFailed, match=r"1 of 2 workers are left, and all are needed.*memory") as failed:
            fleet.wait([running])
        assert [str(cause) for cause in failed.value.causes] == ["worker 0 (life 0) ran out of memory"]
    assert fleet.failure is not None


def test_a_fragment_that_takes_too_long_is_a_death(stage, make_fleet, caplog):
    fleet = make_fleet(2, fragment_timeout_s=20.0)
    stage.takes[Name(0, 0), "collect"] = NEVER
    hung, fine = ask(fleet, 0, timed=True), ask(fleet, 1, timed=True)
    assert fleet.wait([hung, fine]) == [fine]
    with caplog.at_level(logging.WARNING, "swath"):
        assert fleet.wait([hung]) == [hung]
    assert stage.killed == [(Name(0, 0), 20.0)]
    assert isinstance(hung.outcome.exception, WorkerLost)
    (message,) = caplog.messages
    assert message == (
        "worker 0 (life 0) was killed: collect() took longer than fragment_timeout_s=20; "
        "life 1 begins at once (restart 1 of 3)"
    )
    assert (fleet.late, fleet.restarts) == ({Name(0, 0)}, 1)


def test_a_late_worker_is_replaced_though_its_end_takes_time_and_is_late_once(stage, make_fleet):
    fleet = make_fleet(1, fragment_timeout_s=20.0)
    stage.takes[Name(0, 0), "collect"], stage.linger = NEVER, 50.0
    hung = ask(fleet, 0, timed=True)
    assert fleet.wait([hung]) == []
    assert wait_for(fleet, 0).name == Name(0, 1)
    assert stage.now == 20.0
    assert fleet.wait([hung]) == [hung]
    assert (stage.now, fleet.late, fleet.restarts) == (70.0, {Name(0, 0)}, 1)


def test_the_time_of_a_call_begins_when_its_worker_has_nothing_older_to_do(stage, make_fleet):
    fleet = make_fleet(1, fragment_timeout_s=20.0)
    stage.takes["collect"] = 15.0
    tickets = [ask(fleet, 0, timed=True) for _ in range(3)]
    fleet.wait_for_all(tickets, 100.0)
    stage.now += 1000.0
    fleet.wait_for_all([ask(fleet, 0, timed=True)])
    assert (stage.now, fleet.late, fleet.restarts) == (1060.0, set(), 0)


def test_a_call_that_delays_a_timed_call_has_the_same_deadline(stage, make_fleet):
    fleet = make_fleet(1, fragment_timeout_s=20.0)
    stage.takes["state"] = 100.0
    fleet.wait_for_all([ask(fleet, 0, "state")], 200.0)
    assert fleet.restarts == 0, "no timed call waits for it"
    control, timed = ask(fleet, 0, "state"), ask(fleet, 0, timed=True)
    fleet.wait([control])
    assert isinstance(timed.error, WorkerLost)
    assert (stage.now, fleet.late) == (120.0, {Name(0, 0)})


def test_a_consumer_that_is_away_for_long_makes_no_worker_late(stage, make_fleet):
    fleet = make_fleet(1, fragment_timeout_s=20.0)
    ticket = ask(fleet, 0, timed=True)
    stage.wait([ticket])
    stage.now = 500.0
    assert fleet.wait([ticket]) == [ticket]
    assert not fleet.late


@pytest.mark.parametrize("rounds", [1, 2], ids=["before they are placed", "after that"])
def test_next_lives_that_were_ready_in_time_are_not_late(stage, make_fleet, caplog, rounds):
    fleet = make_fleet(3, placement_timeout_s=30.0)
    stage.starts = dict.fromkeys(range(3), 5.0)
    for worker in range(3):
        stage.end(fleet.up[worker])
    for _ in range(rounds):
        fleet.process_events()
    stage.wait([], 1000.0)
    caplog.clear()
    fleet.process_events()
    assert (list(fleet.up), fleet.restarts, caplog.messages) == ([0, 1, 2], 3, [])


REPLACEMENTS = {
    "is not built in time": (NEVER, 30.0, r"1 of 1 workers (0) were not ready after placement_timeout_s=30"),
    "cannot be built": (ValueError("unknown env"), 0.0, "unknown env"),
    "cannot be begun": ((OSError("no more processes"),), 0.0, "no more processes"),
}


@pytest.mark.parametrize(("start", "seconds", "cause"), REPLACEMENTS.values(), ids=REPLACEMENTS)
def test_a_replacement_that_does_not_come_up_counts_as_a_life(stage, make_fleet, start, seconds, cause):
    fleet = make_fleet(1, restarts=Restarts(2, backoff_s=0.5), placement_timeout_s=30.0)
    stage.starts = dict.fromkeys(lives_of(0, 9)[1:], start)
    stage.end(fleet.up[0], "was killed")
    with pytest.raises(FleetFailed) as failed:
        wait_without_end(fleet)
    death, *rest = map(str, failed.value.causes)
    assert death == "worker 0 (life 0) was killed"
    assert len(rest) == 2
    assert all(cause in other for other in rest)
    assert stage.now == 2 * seconds + 0.5


def test_a_replacement_without_room_waits_for_it_and_does_not_count_as_dead(stage, make_fleet, caplog):
    fleet = make_fleet(3, restarts=Restarts(1), placement_timeout_s=30.0)
    stage.starts, stage.crowded = {0: 500.0, 2: 130.0}, (0, 2)
    stage.end(fleet.up[0])
    stage.end(fleet.up[2])
    fleet.process_events()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "swath"):
        assert wait_for(fleet, 0).name == Name(0, 1)
    assert stage.now == 500.0
    assert (fleet.restarts, fleet.failure, list(fleet.up)) == (2, None, [0, 1, 2])
    two_wait = "workers 0, 2 wait for room: each asks for room for 0; there is none"
    assert [message[: len(two_wait)] for message in caplog.messages[:2]] == [two_wait] * 2
    assert len(caplog.messages) == 8, "once a minute"
    assert all(message.startswith("workers 0 wait for room") for message in caplog.messages[2:])


def test_when_the_backend_is_lost_the_run_ends_at_once(stage, make_fleet, caplog):
    fleet = make_fleet(3, restarts=Restarts(1000), min_workers=1)
    ticket = ask(fleet, 1)
    stage.unusable_reason = "no node of the cluster is alive"
    stage.end(fleet.up[0], "was killed")
    assert fleet.wait([ticket]) == [ticket]
    assert isinstance(ticket.outcome.exception, WorkerLost)
    with pytest.raises(FleetFailed, match=r"0 of 3 workers are left.*no node of the cluster is alive") as failed:
        fleet.wait([])
    assert [type(cause) for cause in failed.value.causes] == [WorkerLost] * 3
    assert (stage.now, len(stage.spawned), fleet.backend_lost) == (0.0, 3, stage.unusable_reason)
    assert {name for name, _ in stage.killed} == {Name(1, 0), Name(2, 0)}
    assert [status.phase for status in fleet.statuses().values()] == ["gone"] * 3


def test_all_answers_are_waited_for_and_the_late_are_named(stage, make_fleet):
    fleet = make_fleet(3, fragment_timeout_s=600.0)
    stage.takes[Name(1, 0), "state"] = 30.0
    tickets = [ask(fleet, worker, "state") for worker in fleet.up]
    with pytest.raises(WorkerLate, match=r"workers \[1\] have not answered state\(\) within 5.0 s") as late:
        fleet.wait_for_all(tickets, 5.0)
    assert (late.value.workers, late.value.deadline) == ((1,), 5.0)
    fleet.wait_for_all(tickets)
    assert stage.now == 30.0
    assert list(fleet.up) == [0, 1, 2], "a control call kills no worker"


ADDITIONS = {
    "not in time": ({3: NEVER}, {}, PlacementFailed, r"1 of 2 workers \(3\) were not ready"),
    "not built": ({3: ValueError("unknown env")}, {}, ValueError, "unknown env"),
    "not begun": ({3: (TypeError("cannot pickle"),)}, {}, TypeError, "cannot pickle"),
    "dead before it was ready": ({3: 5.0}, {Name(3, 0): 1.0}, WorkerLost, "ended by itself"),
}


@pytest.mark.parametrize(("starts", "dies", "error", "message"), ADDITIONS.values(), ids=ADDITIONS)
def test_if_one_worker_cannot_be_added_none_is(stage, make_fleet, starts, dies, error, message):
    fleet = make_fleet(2, placement_timeout_s=30.0)
    stage.starts, stage.dies = starts, dies
    with pytest.raises(error, match=message):
        fleet.add(2)
    assert list(fleet.statuses()) == list(fleet.up) == [0, 1]
    assert (fleet.restarts, fleet.failure) == (0, None)
    assert Name(2, 0) in [name for name, _ in stage.killed]
    stage.starts, stage.dies = {}, {}
    fleet.add(1)
    assert list(fleet.up) == [0, 1, 2]


def test_closing_calls_the_workers_and_returns_their_errors(stage, make_fleet):
    fleet = make_fleet(2)
    stage.raises["close"] = OSError("the window is gone")
    assert [str(error) for error in fleet.close()] == ["the window is gone"] * 2
    assert stage.closed == 1
    assert fleet.close() == []
    assert repr(fleet) == "<Fleet 2 workers: closed>"
    for verb in (fleet.process_events, lambda: fleet.wait([]), lambda: fleet.wait_for_all([]), lambda: ask(fleet, 0)):
        with pytest.raises(Closed):
            verb()


def test_closing_stops_waiting_at_its_timeout(stage, make_fleet):
    fleet = make_fleet(2)
    stage.takes[Name(0, 0), "close"] = NEVER
    assert fleet.close(10.0) == []
    assert (stage.now, stage.closed) == (10.0, 1)
