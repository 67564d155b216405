"""Weights, global variables and filters of a set: which workers get which, when, and how many copies there are."""

import weakref
from functools import partial

import numpy as np
import pytest
from set_toys import STEPS, Play, ToyPolicy, toy_set

from swath.errors import NoEffectWarning, WorkerLate
from swath.rollout_workers import FilterManager
from swath.rollout_workers.worker_set.actor import SharedWeights
from swath.workers.local import InlineBackend
from toys import Gate

FILTER = {"observation_filter": "MeanStdFilter"}
NO_LOCAL = {"local_worker": False}


def weights(workers, **options):
    """The first weight of each policy, by worker."""
    values = lambda worker: [float(policy.w[0]) for policy in worker.policy_map.values()]
    return workers.foreach_worker(values, **options)


def counts(worker):
    return worker.filters["default_policy"].rs.n


def set_to(workers, value):
    workers.local_worker().get_policy().w = np.full(2, value, np.float32)


class Learner:
    """Has weights, and is no worker."""

    def __init__(self, size=2, **values):
        self.weights = {pid: {"w": np.full(size, value, np.float32)} for pid, value in values.items()}

    def get_weights(self, policies=None):
        return {pid: own for pid, own in self.weights.items() if policies is None or pid in policies}


def test_all_begin_with_the_weights_of_the_local_worker_else_of_worker_1_as_version_1():
    for local_worker, wanted in ((True, [[0.0]] * 3), (False, [[1.0]] * 2)):
        with toy_set(options={"local_worker": local_worker}) as workers:
            assert (weights(workers), workers.applied_versions()) == (wanted, {1: 1, 2: 1})


def test_new_weights_are_applied_before_the_next_fragment_or_waited_for():
    with toy_set() as workers:
        set_to(workers, 5.0)
        with pytest.warns(NoEffectWarning, match="inference_only"):
            assert workers.sync_weights(inference_only=True) == 2
        set_to(workers, 6.0)
        assert set(workers.sample()["policy_version"]) == {2}
        assert weights(workers, local_worker=False) == [[5.0]] * 2, "a copy of that moment"
        workers.local_worker().set_weights({}, weights_seq_no=41)
        assert workers.sync_weights(timeout_seconds=None) == 42, "above the local worker's own"
        assert workers.applied_versions() == {1: 42, 2: 42}


def test_some_workers_may_get_them_and_the_others_keep_theirs():
    with toy_set() as workers:
        set_to(workers, 5.0)
        workers.sync_weights(to_worker_indices=[2])
        assert weights(workers, local_worker=False) == [[0.0], [5.0]]
        assert workers.applied_versions() == {1: 1, 2: 2}
        with pytest.raises(ValueError, match="remote workers"):
            workers.sync_weights(to_worker_indices=[3])


def test_weights_of_some_policies_may_come_from_elsewhere_and_the_local_worker_gets_them_too():
    with toy_set() as workers:
        workers.add_policy("b", ToyPolicy)
        learner = Learner(default_policy=8.0, b=9.0)
        version = workers.sync_weights(from_worker_or_learner_group=learner, policies=["b"])
        assert (weights(workers, worker_ids=[]), workers.local_worker().policy_version) == ([[0.0, 9.0]], version)
        workers.sync_weights(from_worker=learner, policies="default_policy")
        assert weights(workers) == [[8.0, 9.0]] * 3


def test_weights_without_a_source_are_refused():
    with toy_set(options=NO_LOCAL) as workers:
        with pytest.raises(TypeError, match="no local worker"):
            workers.sync_weights()
        assert workers.sync_weights(from_worker=Learner(default_policy=3.0), timeout_seconds=60.0) == 2
        assert weights(workers) == [[3.0]] * 2


def test_weights_that_do_not_fit_are_raised_until_others_come():
    with toy_set(options=NO_LOCAL) as workers:
        workers.sync_weights(from_worker=Learner(3, default_policy=1.0))
        for _ in range(2):
            with pytest.raises(ValueError, match=r"shape \(3,\)"):
                workers.sample()
        version = workers.sync_weights(from_worker=Learner(default_policy=1.0))
        assert set(workers.sample()["policy_version"]) == {version}


def test_global_variables_are_told_with_the_weights_and_to_later_workers():
    with toy_set() as workers:
        workers.sync_weights(global_vars={"timestep": 7})
        workers.sync_weights(global_vars={"more": 1})
        workers.add_workers(1)
        told = workers.foreach_worker(lambda worker: worker.get_global_vars())
        assert [(each["timestep"], each["more"]) for each in told] == [(7, 1)] * 4


class Counting(InlineBackend):
    """Counts weights that were shared and are still held."""

    alive = most = 0

    def share(self, value):
        shared = super().share(value)
        if isinstance(value, SharedWeights):
            Counting.alive += 1
            Counting.most = max(Counting.most, Counting.alive)
            weakref.finalize(shared, Counting.let_go)
        return shared

    @classmethod
    def let_go(cls):
        cls.alive -= 1


def test_however_often_weights_are_published_two_copies_are_alive(monkeypatch):
    monkeypatch.setattr("swath.rollout_workers.worker_set.workers.backend", lambda name, **_: Counting())
    with toy_set() as workers:
        for timeout in [0.0] * 12 + [60.0] * 12:
            workers.sync_weights(timeout_seconds=timeout)
        assert (Counting.most, Counting.alive) == (2, 1)


FILTERS = [
    ({}, True, [2, 2, 2]),
    ({}, False, [2, 2]),
    ({"use_worker_filter_stats": False}, True, [0, 0, 0]),
    ({"use_worker_filter_stats": False}, False, [0, 0]),
    ({"update_worker_filter_stats": False}, True, [2, 1, 1]),
]


@pytest.mark.parametrize(("settings", "local_worker", "expected"), FILTERS)
def test_what_filters_tell_each_other_is_up_to_the_config(settings, local_worker, expected):
    with toy_set(options={"local_worker": local_worker}, **FILTER, **settings) as workers:
        for round_ in (1, 2):
            workers.sample()
            workers.sync_filters()
            assert workers.foreach_worker(counts) == [(round_ * STEPS + 1) * shares for shares in expected]


def test_what_some_workers_saw_is_taken_in_though_another_raises():
    with toy_set(**FILTER) as workers:
        workers.sample()
        workers.foreach_worker(lambda worker: setattr(worker, "get_filters", None), worker_ids=[2], local_worker=False)
        with pytest.raises(TypeError, match="not callable"):
            workers.sync_filters()
        assert counts(workers.local_worker()) == STEPS + 1


def test_what_a_worker_says_it_saw_too_late_is_taken_in_the_next_time(tmp_path, warm_processes):
    gate = Gate.at(tmp_path / "gate")
    with toy_set(Play({(1, 0, 2): gate}), backend="process", **FILTER) as workers:
        workers.sample()
        workers.foreach_worker("sample", timeout_seconds=0, local_worker=False, worker_ids=[1])
        gate.await_arrival()
        for ask in (workers.sync_filters, partial(FilterManager.synchronize, workers.local_worker().filters, workers)):
            with pytest.raises(WorkerLate):
                ask(timeout_seconds=0.01)
        gate.open()
        for _ in range(2):
            workers.sync_filters()
            assert workers.foreach_worker(counts) == [3 * STEPS + 2] * 3, "and only once"
