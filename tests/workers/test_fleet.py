"""A fleet over a play: each row of the fault table, on a clock that nobody waits for."""

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
def fleet(stage):
    """Makes a fleet over the stage."""

    def fleet(n=2, *, up=True, **options):
        made = Fleet(stage, job, n, Survival(**options), stage.clock)
        if up:
            made.start()
        return made

    return fleet


def lost(fleet):
    return [worker for worker, standing in fleet.statuses().items() if standing.phase == "gone"]


def ask(fleet, worker, method="collect", **options):
    return fleet.call(fleet.up[worker], method, **options)


def answer(fleet, ticket):
    while not ticket.done:
        fleet.wait([ticket])
    return ticket.value


def wait_for_ever(fleet):
    while True:
        fleet.wait([])


def wait_for(fleet, worker):
    while worker not in fleet.up:
        fleet.wait([])
    return fleet.up[worker]


def test_what_a_builder_raises_leaves_as_itself_and_nothing_is_left(stage, fleet):
    stage.starts = {0: 3.0, 1: ValueError("no such env")}
    made = fleet(2, up=False)
    with pytest.raises(ValueError, match="no such env"):
        made.start()
    assert stage.closed
    assert len(stage.spawned) == 2, "nobody is replaced"
    with pytest.raises(Closed):
        made.wait([])


def test_too_few_workers_in_time_is_an_error_that_says_what_was_asked_for(stage, fleet):
    stage.starts = {1: NEVER, 2: NEVER}
    with pytest.raises(PlacementFailed, match=r"2 of 3 workers \(1, 2\) were not ready after .*=30") as failed:
        fleet(3, placement_timeout_s=30.0)
    assert (failed.value.asked, failed.value.available) == ("room for 1", "none")
    assert stage.now == 30.0
    assert stage.closed


def test_enough_workers_in_time_go_on_with_a_warning_and_the_others_join_later(stage, fleet):
    stage.starts = {1: 50.0}
    made = fleet(3, up=False, placement_timeout_s=30.0, min_workers=2)
    with pytest.warns(UserWarning, match=r"1 of 3 workers \(1\) were not ready .*the others begin without them"):
        made.start()
    assert list(made.up) == [0, 2]
    seen = made.event_count
    assert made.wait([]) == []
    assert (stage.now, sorted(made.up)) == (50.0, [0, 1, 2])
    assert made.event_count > seen


def test_a_worker_that_dies_is_replaced_at_once_and_its_calls_are_answered_with_its_loss(stage, fleet, caplog):
    made = fleet(2)
    handle, ticket = made.up[0], ask(made, 0)
    stage.at(0.5, lambda: stage.end(handle, "was killed by signal 9"))
    with caplog.at_level(logging.WARNING, "swath"):
        assert made.wait([ticket]) == [ticket]
    with pytest.raises(WorkerLost, match="signal 9"):
        _ = ticket.value
    assert stage.spawned[2:] == [(Name(0, 1), 0.5)]
    assert caplog.messages == [
        "worker 0 (life 0) was killed by signal 9; life 1 begins at once (restart 1 of 3)",
    ]
    assert list(made.up) == [1]
    made.wait([])
    assert made.up[0].name == Name(0, 1)
    assert (made.restarts, lost(made), made.late) == (1, [], set())


def test_later_replacements_wait_and_nobody_waits_longer(stage, fleet, caplog):
    made = fleet(1, restarts=Restarts(3, backoff_s=4.0, backoff_max_s=6.0))
    stage.dies = dict.fromkeys(lives_of(0, 9), 0.25)
    stage.end(made.up[0])
    with caplog.at_level(logging.WARNING, "swath"), pytest.raises(FleetFailed):
        wait_for_ever(made)
    assert stage.spawned == [(Name(0, 0), 0.0), (Name(0, 1), 0.0), (Name(0, 2), 4.25), (Name(0, 3), 10.5)]
    assert [message.partition("; ")[2] for message in caplog.messages] == [
        "life 1 begins at once (restart 1 of 3)",
        "life 2 begins in 4 s (restart 2 of 3)",
        "life 3 begins in 6 s (restart 3 of 3)",
        "it is given up after 3 restarts; 0 workers are left",
    ]


def test_a_wait_ends_after_its_timeout_or_when_interrupted(stage, fleet):
    made = fleet(1)
    stage.takes["collect"] = 50.0
    ticket = ask(made, 0)
    assert made.wait([ticket], timeout=7.0) == []
    assert stage.now == 7.0
    assert made.wait([ticket], interrupted=lambda: True) == []
    assert stage.now == 7.0
    assert made.wait([ticket]) == [ticket]
    assert stage.now == 50.0


def test_with_too_few_left_what_is_answered_comes_first_then_the_failure_again_and_again(stage, fleet):
    made = fleet(2, restarts=Restarts(0))
    finished, running = ask(made, 1), ask(made, 1)
    stage.wait([finished])
    stage.end(made.up[0], "ran out of memory")
    assert made.wait([finished, running]) == [finished]
    for _ in range(2):
        with pytest.raises(FleetFailed, match=r"1 of 2 workers are left, and all are needed.*memory") as failed:
            made.wait([running])
        assert [str(cause) for cause in failed.value.causes] == ["worker 0 (life 0) ran out of memory"]
    assert made.failure is not None


def test_a_fragment_that_takes_too_long_is_a_death(stage, fleet, caplog):
    made = fleet(2, fragment_timeout_s=20.0)
    stage.takes[Name(0, 0), "collect"] = NEVER
    hung, fine = ask(made, 0, timed=True), ask(made, 1, timed=True)
    assert made.wait([hung, fine]) == [fine]
    with caplog.at_level(logging.WARNING, "swath"):
        assert made.wait([hung]) == [hung]
    assert stage.killed == [(Name(0, 0), 20.0)]
    assert isinstance(hung.outcome.exception, WorkerLost)
    (message,) = caplog.messages
    assert message == (
        "worker 0 (life 0) was killed: collect() took longer than fragment_timeout_s=20; "
        "life 1 begins at once (restart 1 of 3)"
    )
    assert (made.late, made.restarts) == ({Name(0, 0)}, 1)


def test_a_late_worker_is_replaced_though_its_end_takes_time_and_is_late_once(stage, fleet):
    made = fleet(1, fragment_timeout_s=20.0)
    stage.takes[Name(0, 0), "collect"], stage.linger = NEVER, 50.0
    hung = ask(made, 0, timed=True)
    assert made.wait([hung]) == []
    assert wait_for(made, 0).name == Name(0, 1)
    assert stage.now == 20.0
    assert made.wait([hung]) == [hung]
    assert (stage.now, made.late, made.restarts) == (70.0, {Name(0, 0)}, 1)


def test_the_time_of_a_call_begins_when_its_worker_has_nothing_older_to_do(stage, fleet):
    made = fleet(1, fragment_timeout_s=20.0)
    stage.takes["collect"] = 15.0
    tickets = [ask(made, 0, timed=True) for _ in range(3)]
    made.wait_for_all(tickets, 100.0)
    stage.now += 1000.0
    made.wait_for_all([ask(made, 0, timed=True)])
    assert (stage.now, made.late, made.restarts) == (1060.0, set(), 0)


def test_a_call_that_keeps_one_with_a_deadline_waiting_is_held_to_the_same(stage, fleet):
    made = fleet(1, fragment_timeout_s=20.0)
    stage.takes["state"] = 100.0
    made.wait_for_all([ask(made, 0, "state")], 200.0)
    assert made.restarts == 0, "nobody waits for it"
    control, timed = ask(made, 0, "state"), ask(made, 0, timed=True)
    made.wait([control])
    assert isinstance(timed.error, WorkerLost)
    assert (stage.now, made.late) == (120.0, {Name(0, 0)})


def test_a_consumer_that_is_away_for_long_makes_nobody_late(stage, fleet):
    made = fleet(1, fragment_timeout_s=20.0)
    ticket = ask(made, 0, timed=True)
    stage.wait([ticket])
    stage.now = 500.0
    assert made.wait([ticket]) == [ticket]
    assert not made.late


@pytest.mark.parametrize("looks", [1, 2], ids=["before they are placed", "after that"])
def test_next_lives_that_were_ready_in_time_are_not_late_because_nobody_has_looked(stage, fleet, caplog, looks):
    made = fleet(3, placement_timeout_s=30.0)
    stage.starts = dict.fromkeys(range(3), 5.0)
    for worker in range(3):
        stage.end(made.up[worker])
    for _ in range(looks):
        made.process_events()
    stage.wait([], 1000.0)
    caplog.clear()
    made.process_events()
    assert (list(made.up), made.restarts, caplog.messages) == ([0, 1, 2], 3, [])


REPLACEMENTS = {
    "is not built in time": (NEVER, 30.0, r"1 of 1 workers (0) were not ready after placement_timeout_s=30"),
    "cannot be built": (ValueError("no such env"), 0.0, "no such env"),
    "cannot be begun": ((OSError("no more processes"),), 0.0, "no more processes"),
}


@pytest.mark.parametrize(("start", "seconds", "cause"), REPLACEMENTS.values(), ids=REPLACEMENTS)
def test_a_replacement_that_does_not_come_up_counts_as_a_life(stage, fleet, start, seconds, cause):
    made = fleet(1, restarts=Restarts(2, backoff_s=0.5), placement_timeout_s=30.0)
    stage.starts = dict.fromkeys(lives_of(0, 9)[1:], start)
    stage.end(made.up[0], "was killed")
    with pytest.raises(FleetFailed) as failed:
        wait_for_ever(made)
    death, *rest = map(str, failed.value.causes)
    assert death == "worker 0 (life 0) was killed"
    assert len(rest) == 2
    assert all(cause in one for one in rest)
    assert stage.now == 2 * seconds + 0.5


def test_a_replacement_that_finds_no_room_waits_for_it_and_that_is_no_death(stage, fleet, caplog):
    made = fleet(3, restarts=Restarts(1), placement_timeout_s=30.0)
    stage.starts, stage.crowded = {0: 500.0, 2: 130.0}, (0, 2)
    stage.end(made.up[0])
    stage.end(made.up[2])
    made.process_events()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "swath"):
        assert wait_for(made, 0).name == Name(0, 1)
    assert stage.now == 500.0
    assert (made.restarts, made.failure, list(made.up)) == (2, None, [0, 1, 2])
    both, one = "workers 0, 2 wait for room: each asks for room for 0; there is none", "workers 0 wait for room"
    assert [message[: len(both)] for message in caplog.messages[:2]] == [both] * 2
    assert len(caplog.messages) == 8, "once a minute"
    assert all(message.startswith(one) for message in caplog.messages[2:])


def test_when_the_whole_place_is_gone_the_run_ends_at_once(stage, fleet, caplog):
    made = fleet(3, restarts=Restarts(1000), min_workers=1)
    ticket = ask(made, 1)
    stage.unusable_because = "no node of the cluster is alive"
    stage.end(made.up[0], "was killed")
    assert made.wait([ticket]) == [ticket]
    assert isinstance(ticket.outcome.exception, WorkerLost)
    with pytest.raises(FleetFailed, match=r"0 of 3 workers are left.*no node of the cluster is alive") as failed:
        made.wait([])
    assert [type(cause) for cause in failed.value.causes] == [WorkerLost] * 3
    assert (stage.now, len(stage.spawned), made.backend_lost) == (0.0, 3, stage.unusable_because)
    assert {name for name, _ in stage.killed} == {Name(1, 0), Name(2, 0)}
    assert [standing.phase for standing in made.statuses().values()] == ["gone"] * 3


def test_all_answers_are_waited_for_and_the_late_are_named(stage, fleet):
    made = fleet(3, fragment_timeout_s=600.0)
    stage.takes[Name(1, 0), "state"] = 30.0
    tickets = [ask(made, worker, "state") for worker in made.up]
    with pytest.raises(WorkerLate, match=r"workers \[1\] have not answered state\(\) within 5.0 s") as late:
        made.wait_for_all(tickets, 5.0)
    assert (late.value.workers, late.value.deadline) == ((1,), 5.0)
    made.wait_for_all(tickets)
    assert stage.now == 30.0
    assert list(made.up) == [0, 1, 2], "a control call kills nobody"


ADDITIONS = {
    "not in time": ({3: NEVER}, {}, PlacementFailed, r"1 of 2 workers \(3\) were not ready"),
    "not built": ({3: ValueError("no such env")}, {}, ValueError, "no such env"),
    "not begun": ({3: (TypeError("cannot pickle"),)}, {}, TypeError, "cannot pickle"),
    "dead before it was ready": ({3: 5.0}, {Name(3, 0): 1.0}, WorkerLost, "ended by itself"),
}


@pytest.mark.parametrize(("starts", "dies", "error", "message"), ADDITIONS.values(), ids=ADDITIONS)
def test_of_workers_that_cannot_be_added_none_is(stage, fleet, starts, dies, error, message):
    made = fleet(2, placement_timeout_s=30.0)
    stage.starts, stage.dies = starts, dies
    with pytest.raises(error, match=message):
        made.add(2)
    assert list(made.statuses()) == list(made.up) == [0, 1]
    assert (made.restarts, made.failure) == (0, None)
    assert Name(2, 0) in [name for name, _ in stage.killed]
    stage.starts, stage.dies = {}, {}
    assert made.add(1) == (2,)


def test_workers_are_asked_to_close_and_what_that_raises_is_returned(stage, fleet):
    made = fleet(2)
    stage.raises["close"] = OSError("the window is gone")
    assert [str(error) for error in made.close()] == ["the window is gone"] * 2
    assert stage.closed == 1
    assert made.close() == []
    assert repr(made) == "<Fleet 2 workers: closed>"
    for verb in (made.process_events, lambda: made.wait([]), lambda: made.wait_for_all([]), lambda: ask(made, 0)):
        with pytest.raises(Closed):
            verb()


def test_closing_waits_no_longer_than_it_may(stage, fleet):
    made = fleet(2)
    stage.takes[Name(0, 0), "close"] = NEVER
    assert made.close(10.0) == []
    assert (stage.now, stage.closed) == (10.0, 1)
