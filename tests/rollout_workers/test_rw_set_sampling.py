"""Batches of a set: the order of fragments, and late ones.

And weights, global variables and filters: which workers get them, when, and in how many copies.
"""

import weakref
from functools import partial

import numpy as np
import pytest
from set_toys import STEPS, Broken, Play, ToyPolicy, rows, toy_set, workers_of

from swath.errors import FleetFailed, NoEffectWarning, WorkerLate
from swath.rollout_workers import FilterManager, SampleBatch, synchronous_parallel_sample
from swath.rollout_workers.worker_set.actor import SharedWeights
from swath.workers.local import InlineBackend
from toys import DEADLINE_S, first_in_time


def test_one_fragment_of_each_worker_in_order_joined_or_apart_and_of_the_local_one_if_there_is_no_other():
    with toy_set(n=3) as workers:
        for begin in (0, STEPS):
            wanted = [(worker, 0, begin + t) for worker in (1, 2, 3) for t in range(STEPS)]
            assert rows(workers.sample()) == wanted
        assert [workers_of(batch) for batch in workers.sample(concat=False)] == [[1], [2], [3]]
    with toy_set(n=0) as workers:
        assert workers_of(workers.sample()) == [0]
        assert workers_of(workers.sample(min_env_steps=STEPS + 1)) == [0, 0]
        assert len(workers.sample(min_env_steps=STEPS + 1, concat=False)) == 2


def test_collection_goes_on_until_there_are_enough_steps():
    with toy_set() as workers:
        batch = workers.sample(min_env_steps=4 * STEPS + 1)
        assert (sorted(workers_of(batch)), len(workers_of(batch))) == (workers_of(batch), 5)
        assert workers_of(workers.sample()) == [1, 2]
        assert isinstance(synchronous_parallel_sample(worker_set=workers), SampleBatch)
        assert len(synchronous_parallel_sample(worker_set=workers, max_agent_steps=3 * STEPS, concat=False)) == 3
        for wrong, words in ((0, "min_env_steps=0"), (1.5, "min_env_steps"), (1, "give one of them")):
            with pytest.raises(ValueError, match=words):
                workers.sample(min_env_steps=wrong, min_agent_steps=1 if wrong == 1 else None)


@pytest.mark.parametrize("n", [0, 2])
def test_fragments_from_before_an_exception_are_part_of_the_next_batch(n):
    with toy_set(Play({(0, 0, 2): "raise", (1, 0, 2): "raise"}), n=n) as workers:
        with pytest.raises(Broken, match="an env raised"):
            synchronous_parallel_sample(worker_set=workers, max_agent_steps=4 * STEPS)
        assert workers.stats()["frames"] == 0
        collected = rows(synchronous_parallel_sample(worker_set=workers, max_agent_steps=4 * STEPS))
        assert len(collected) == len(set(collected)) == workers.stats()["frames"] >= 4 * STEPS
        for worker in (1, 2) if n else (0,):
            steps = [step for number, _, step in collected if number == worker]
            assert steps == [*range(len(steps))] != [], (
                "the first fragments, and those made when the other worker raised"
            )


@pytest.mark.parametrize("backend", ["inline", "process"])
def test_batches_are_the_callers_own_and_arrays_in_infos_too(fork_server, backend):
    def add_infos(worker):
        sample, big = worker.sample, np.arange(100_000.0)
        infos = np.array([{"seen": big + row} for row in range(STEPS)], dtype=object)
        worker.sample = lambda: sample().with_columns({"obs": np.zeros(STEPS), "infos": infos})

    with toy_set(backend=backend) as workers:
        workers.foreach_worker(add_infos)
        batches = [workers.sample(), *workers.sample(concat=False), workers.sample()]
    for batch in batches:
        batch["obs"] += 1
        assert (batch["obs"] == 1).all()
        for row, info in enumerate(batch["infos"]):
            info["seen"] += 1.0
            assert info["seen"][[0, -1]].tolist() == [row % STEPS + 1.0, row % STEPS + 100_000.0]


def test_sampled_frames_are_counted_in_all_and_by_worker():
    with toy_set() as workers:
        workers.sample()
        workers.sync_weights()
        facts = workers.stats("both")
        assert (facts["frames"], facts["batches"], facts["workers_alive"], facts["staleness"]) == (2 * STEPS, 1, 2, 1)
        of_worker = {"frames": STEPS, "life": 0, "state": "up", "policy_version": 1, "staleness": 1}
        wanted = {f"worker_{n}/{name}": fact for n in (1, 2) for name, fact in of_worker.items()}
        assert workers.stats("per_worker") == wanted
        with pytest.raises(ValueError, match="workers must be one of"):
            workers.stats("all")


IGNORING = {"restart_failed_env_runners": False, "ignore_env_runner_failures": True}


def test_a_lost_share_is_collected_by_others(fork_server):
    with toy_set(Play({(1, 0, 2): "kill"}), backend="process", **IGNORING) as workers:
        workers.sample()
        batch = workers.sample()
        assert batch.count == 2 * STEPS
        assert (1, 0, STEPS) not in rows(batch), "nothing of the broken fragment"
        assert {"died", "discarded"} <= {event.kind for event in workers.events()}


TWO_IN_A_ROW = {"num_consecutive_env_runner_failures_tolerance": 2}


@pytest.mark.parametrize(("settings", "words"), [(IGNORING, "worker 1"), (TWO_IN_A_ROW, "3 workers died in a row")])
def test_the_set_fails_with_no_worker_left_or_too_many_deaths_in_a_row(fork_server, settings, words):
    play = Play({(1, life, 1): "kill" for life in range(9)})
    with toy_set(play, 1, "process", **settings) as workers, pytest.raises(FleetFailed, match=words):
        workers.sample()


def test_late_fragments_are_part_of_the_next_batch(fork_server, gate):
    with toy_set(Play({(1, 0, 2): gate}), backend="process") as workers:
        workers.sample()
        assert workers_of(first_in_time(WorkerLate, workers.sample, timeout_seconds=0.5)) == [2]
        assert workers.healthy_worker_ids() == [1, 2], "late is not dead"
        gate.open()
        assert rows(workers.sample())[::STEPS] == [(1, 0, STEPS), (2, 0, 2 * STEPS)]
        assert {event.kind for event in workers.events()} == {"late"}


def test_a_sample_without_a_fragment_in_time_is_late(fork_server, gate):
    with toy_set(Play({(1, 0, 1): gate}), 1, "process", sample_timeout_s=0.01) as workers:
        with pytest.raises(WorkerLate, match="no fragment") as raised:
            workers.sample()
        assert raised.value.workers == (1,)
        gate.open()
        assert rows(workers.sample(timeout_seconds=DEADLINE_S)) == [(1, 0, t) for t in range(STEPS)]


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
        return {pid: arrays for pid, arrays in self.weights.items() if policies is None or pid in policies}


def test_all_begin_with_the_weights_of_the_local_worker_else_of_worker_1_as_version_1():
    for local_worker, wanted in ((True, [[0.0]] * 3), (False, [[1.0]] * 2)):
        with toy_set(options={"local_worker": local_worker}) as workers:
            assert (weights(workers), workers.applied_versions()) == (wanted, {1: 1, 2: 1})


def test_new_weights_are_applied_before_the_next_fragment_or_waited_for_by_all_workers_or_some():
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
        set_to(workers, 7.0)
        workers.sync_weights(to_worker_indices=[2])
        assert weights(workers, local_worker=False) == [[6.0], [7.0]]
        assert workers.applied_versions() == {1: 42, 2: 43}, "the others keep theirs"
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


def test_weights_need_a_source_and_misfits_are_raised_until_others_are_published():
    with toy_set(options=NO_LOCAL) as workers:
        with pytest.raises(TypeError, match="no local worker"):
            workers.sync_weights()
        assert workers.sync_weights(from_worker=Learner(default_policy=3.0), timeout_seconds=DEADLINE_S) == 2
        assert weights(workers) == [[3.0]] * 2
        workers.sync_weights(from_worker=Learner(3, default_policy=1.0))
        for _ in range(2):
            with pytest.raises(ValueError, match=r"shape \(3,\)"):
                workers.sample()
        version = workers.sync_weights(from_worker=Learner(default_policy=1.0))
        assert set(workers.sample()["policy_version"]) == {version}


def test_global_variables_are_sent_with_the_weights_and_to_later_workers():
    with toy_set() as workers:
        workers.sync_weights(global_vars={"timestep": 7})
        workers.sync_weights(global_vars={"more": 1})
        workers.add_workers(1)
        global_vars = workers.foreach_worker(lambda worker: worker.get_global_vars())
        assert [(variables["timestep"], variables["more"]) for variables in global_vars] == [(7, 1)] * 4


def test_however_often_weights_are_published_two_copies_are_alive(monkeypatch):
    alive, numbers = weakref.WeakSet(), []

    class Counting(InlineBackend):
        def share(self, value):
            shared = super().share(value)
            if isinstance(value, SharedWeights):
                alive.add(shared)
                numbers.append(len(alive))
            return shared

    monkeypatch.setattr("swath.rollout_workers.worker_set.members.backend", lambda name, **_: Counting())
    with toy_set() as workers:
        for timeout in [0.0] * 12 + [60.0] * 12:
            workers.sync_weights(timeout_seconds=timeout)
        assert (max(numbers), len(alive)) == (2, 1)


FILTERS = [
    ({}, True, [2, 2, 2]),
    ({}, False, [2, 2]),
    ({"use_worker_filter_stats": False}, True, [0, 0, 0]),
    ({"use_worker_filter_stats": False}, False, [0, 0]),
    ({"update_worker_filter_stats": False}, True, [2, 1, 1]),
]


@pytest.mark.parametrize(("settings", "local_worker", "expected"), FILTERS)
def test_the_config_says_what_filters_exchange(settings, local_worker, expected):
    with toy_set(options={"local_worker": local_worker}, **FILTER, **settings) as workers:
        for round_ in (1, 2):
            workers.sample()
            workers.sync_filters()
            assert workers.foreach_worker(counts) == [(round_ * STEPS + 1) * shares for shares in expected]


def test_filter_buffers_of_some_workers_are_merged_though_another_raises():
    with toy_set(**FILTER) as workers:
        workers.sample()
        workers.foreach_worker(lambda worker: setattr(worker, "get_filters", None), worker_ids=[2], local_worker=False)
        with pytest.raises(TypeError, match="not callable"):
            workers.sync_filters()
        assert counts(workers.local_worker()) == STEPS + 1


def test_late_filter_buffers_are_merged_the_next_time(gate, fork_server):
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
