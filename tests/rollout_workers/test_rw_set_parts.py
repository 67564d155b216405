"""What a set makes of the deaths of its workers."""

import pytest

from swath.errors import FleetFailed, WorkerLate, WorkerLost
from swath.rollout_workers import AlgorithmConfig
from swath.rollout_workers.worker_set.deaths import Deaths, Events
from swath.workers.fleet_state import Died, GiveUp, Ready
from swath.workers.tickets import Name


def settings(**others):
    return AlgorithmConfig().update_from_dict({"env_runner_hang_timeout_s": 2.0, **others})


def lost(worker, life=0):
    return WorkerLost("gone", worker=worker, life=life)


def test_deaths_that_are_borne_are_told_and_raised_only_in_a_row():
    events = Events()
    deaths = Deaths(settings(num_consecutive_env_runner_failures_tolerance=1), events, {Name(1, 1)})
    deaths(Ready(Name(1, 0)))
    deaths(Died(Name(1, 0), lost(1)))
    deaths(Ready(Name(1, 1)))
    deaths.require_few()
    deaths.require_borne()
    deaths.answered()
    deaths(Died(Name(1, 1), lost(1, 1)))
    deaths(Died(Name(2, 0), lost(2)))
    deaths(GiveUp(Name(2, 0)))
    with pytest.raises(FleetFailed, match="2 workers died in a row") as raised:
        deaths.require_few()
    assert [cause.worker for cause in raised.value.causes] == [1, 2]
    assert [event.kind for event in events.drain()] == ["died", "replaced", "hung", "died", "given up"]


def test_deaths_that_are_not_borne_are_raised_once_unless_somebody_was_told():
    deaths = Deaths(settings(restart_failed_env_runners=False), Events(), {Name(2, 0)})
    for worker in (1, 2, 3):
        deaths(Died(Name(worker, 0), lost(worker)))
    deaths.told(Name(3, 0))
    with pytest.raises(WorkerLost):
        deaths.require_borne()
    with pytest.raises(WorkerLate, match="env_runner_hang_timeout_s=2"):
        deaths.require_borne()
    deaths.require_borne()
