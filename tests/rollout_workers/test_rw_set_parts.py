"""Parts of a set by themselves: changes of policies, and deaths of workers."""

import pytest

from swath.errors import FleetFailed, WorkerLate, WorkerLost
from swath.rollout_workers import AlgorithmConfig
from swath.rollout_workers.worker_set.deaths import Deaths, Events
from swath.rollout_workers.worker_set.resident import AS_BUILT, settle
from swath.workers.fleet_state import Died, GiveUp, Ready
from swath.workers.tickets import Name


class Recorder:
    """A worker that writes down what is asked of it; some policies cannot be added, for a while."""

    def __init__(self, *policies, refuses=()):
        self.policy_map = dict.fromkeys(policies)
        self.refuses, self.asked = set(refuses), []

    def add_policy(self, policy_id, **how):
        if policy_id in self.refuses:
            raise ValueError(policy_id)
        self.asked.append(("add", policy_id, how))
        self.policy_map[policy_id] = how

    def remove_policy(self, *, policy_id):
        self.asked.append(("remove", policy_id))
        del self.policy_map[policy_id]

    def set_policy_mapping_fn(self, function):
        self.asked.append(("map", function))

    def set_is_policy_to_train(self, which):
        self.asked.append(("train", which))


def test_a_worker_that_missed_everything_is_told_only_what_holds():
    want = AS_BUILT.adding("a", {"n": 1}).adding("b", {}).removing("a").removing("default").adding("a", {"n": 2})
    want = want.mapping_by(len).mapping_by(max).training(["b"]).training(["a"])
    worker = Recorder("default")
    settle(worker, want, AS_BUILT)
    assert worker.asked == [
        ("remove", "default"),
        ("add", "b", {}),
        ("add", "a", {"n": 2}),
        ("map", max),
        ("train", ["a"]),
    ]
    assert want.revision == 9


def test_a_worker_is_told_only_what_is_different():
    have = AS_BUILT.adding("a", {"n": 1}).adding("b", {}).mapping_by(max).training(["b"])
    want = have.removing("a").adding("a", {"n": 2})
    worker = Recorder("default", "a", "b")
    settle(worker, want, have)
    assert worker.asked == [("remove", "a"), ("add", "a", {"n": 2})]
    settle(worker, want, want)
    assert len(worker.asked) == 2


def test_what_failed_half_way_is_done_when_it_is_tried_again():
    want = AS_BUILT.adding("a", {}).adding("b", {}).removing("default").mapping_by(max)
    worker = Recorder("default", refuses=["b"])
    with pytest.raises(ValueError, match="b"):
        settle(worker, want, AS_BUILT)
    worker.refuses.clear()
    settle(worker, want, AS_BUILT)
    assert worker.asked == [("remove", "default"), ("add", "a", {}), ("add", "b", {}), ("map", max)]


def test_nothing_said_changes_nothing():
    assert AS_BUILT.mapping_by(None) is AS_BUILT
    assert AS_BUILT.training(None) is AS_BUILT


def settings(**others):
    return AlgorithmConfig().update_from_dict({"env_runner_hang_timeout_s": 2.0, **others})


def lost(worker, life=0):
    return WorkerLost("gone", worker=worker, life=life)


def test_deaths_that_are_borne_are_told_and_raised_only_in_a_row():
    events = Events()
    deaths = Deaths(settings(num_consecutive_env_runner_failures_tolerance=1), events, lambda name: name == Name(1, 1))
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
    deaths = Deaths(settings(restart_failed_env_runners=False), Events(), lambda name: name == Name(2, 0))
    for worker in (1, 2, 3):
        deaths(Died(Name(worker, 0), lost(worker)))
    deaths.told(Name(3, 0))
    with pytest.raises(WorkerLost):
        deaths.require_borne()
    with pytest.raises(WorkerLate, match="env_runner_hang_timeout_s=2"):
        deaths.require_borne()
    deaths.require_borne()
