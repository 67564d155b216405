"""Whatever befalls a fleet's workers, whoever draws from it gets what was promised, or the failure."""

from functools import partial

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fates import DEADLINE_S, FATES, NEVER, SURVIVALS, N, quiet  # noqa: F401  a fixture
from staged import Staged, job
from swath.errors import FleetFailed, WorkerLost
from swath.workers.fleet import Fleet
from swath.workers.outcome import Error

WANTED = 12


def drawn(fleet):
    """Fragments, one at a time from every worker, as an asynchronous collection draws them."""
    got, asked = [], {}
    while len(got) < WANTED:
        seen = fleet.changes
        for worker, handle in fleet.up.items():
            if worker not in asked:
                asked[worker] = fleet.call(handle, "collect", late=True)
        for ticket in fleet.wait(list(asked.values()), seen=seen):
            del asked[ticket.name.worker]
            if not isinstance(ticket.outcome, Error):
                got.append(ticket)
    return got


def play(stage, fleet, fates):
    """The fragments, or the failure, when these fates befall workers that were all up."""
    fleet.bring_up()
    stage.starts, stage.dies = fates["starts"], fates["dies"]
    stage.takes = {(name, "collect"): NEVER for name in fates["hangs"]}
    for name, seconds in stage.dies.items():
        if name.life == 0:
            stage.at(seconds, partial(stage.end, fleet.handle(name.worker)))
    try:
        return drawn(fleet), None
    except FleetFailed as failed:
        return [], failed


@given(SURVIVALS, st.fixed_dictionaries(FATES))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_draw_ends_with_what_was_promised_or_with_the_failure(survival, fates):
    stage = Staged()
    fleet = Fleet(stage, job, N, survival, stage.clock)
    got, failed = play(stage, fleet, fates)
    phases = [standing.phase for standing in fleet.standings().values()]
    fleet.close(0.0)
    if failed is None:
        assert len(set(map(id, got))) == WANTED, "a fragment was delivered twice"
        assert not {ticket.name for ticket in got} & fates["hangs"]
    else:
        assert all(isinstance(cause, WorkerLost | OSError | TimeoutError) for cause in failed.causes)
        assert N - phases.count("gone") < (survival.min_workers or N)
        assert len(failed.causes) >= phases.count("gone")
    lives = [name for name, _ in stage.spawned]
    assert len(set(lives)) == len(lives), "a life was begun twice"
    assert len(fleet.late) <= len(fates["hangs"])
    faults = sum(map(len, fates.values()))
    assert stage.now <= WANTED + faults * (30.0 + DEADLINE_S + 4.0), "it waited for longer than it had to"
