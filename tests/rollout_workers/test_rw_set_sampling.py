"""Batches of a set: whose fragments are in them, in which order, with which weights; what becomes of late ones."""

import numpy as np
import pytest
from set_toys import STEPS, Broken, Play, rows, toy_set, workers_of

from swath.errors import FleetFailed, WorkerLate
from swath.rollout_workers import SampleBatch, synchronous_parallel_sample
from toys import Gate


def test_one_fragment_of_each_worker_in_order_joined_or_apart():
    with toy_set(n=3) as workers:
        for begin in (0, STEPS):
            wanted = [(worker, 0, begin + t) for worker in (1, 2, 3) for t in range(STEPS)]
            assert rows(workers.sample()) == wanted
        assert [workers_of(batch) for batch in workers.sample(concat=False)] == [[1], [2], [3]]


def test_without_remote_workers_the_local_one_collects():
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
def test_what_was_collected_before_a_later_call_raised_is_part_of_the_next_batch(n):
    limit = "max_agent_steps"
    with toy_set(Play({(0, 0, 2): "raise", (1, 0, 2): "raise"}), n=n) as workers:
        with pytest.raises(Broken, match="an env raised"):
            synchronous_parallel_sample(worker_set=workers, **{limit: 4 * STEPS})
        assert workers.stats()["frames"] == 0
        batch = synchronous_parallel_sample(worker_set=workers, **{limit: 4 * STEPS})
        made = rows(batch)
        assert len(made) == len(set(made)) == workers.stats()["frames"] >= 4 * STEPS
        assert {(worker, 0, 0) for worker in ((1, 2) if n else (0,))} <= set(made), "the first fragments, too"


@pytest.mark.parametrize("backend", ["inline", "process"])
def test_batches_are_the_callers_own_and_arrays_in_infos_too(warm_processes, backend):
    def add_infos(worker):
        sample, big = worker.sample, np.arange(100_000.0)
        infos = np.array([{"seen": big + row} for row in range(STEPS)], dtype=object)
        worker.sample = lambda: sample().like({"obs": np.zeros(STEPS), "infos": infos})

    with toy_set(backend=backend) as workers:
        workers.foreach_worker(add_infos)
        batches = [workers.sample(), *workers.sample(concat=False), workers.sample()]
    for batch in batches:
        batch["obs"] += 1
        assert (batch["obs"] == 1).all()
        for row, info in enumerate(batch["infos"]):
            info["seen"] += 1.0
            assert info["seen"][[0, -1]].tolist() == [row % STEPS + 1.0, row % STEPS + 100_000.0]


def test_what_was_sampled_is_counted_by_all_and_by_worker():
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


def test_what_an_env_raises_is_raised_and_the_other_fragments_stay():
    with toy_set(Play({(1, 0, 2): "raise"})) as workers:
        workers.sample()
        with pytest.raises(Broken, match="an env raised"):
            workers.sample()
        assert rows(workers.sample())[::STEPS] == [(1, 0, STEPS), (2, 0, STEPS)], "the second of worker 2 was kept"
        assert workers.num_remote_worker_restarts() == 0


def test_a_lost_share_is_collected_by_others(warm_processes):
    ignored = {"restart_failed_env_runners": False, "ignore_env_runner_failures": True}
    with toy_set(Play({(1, 0, 2): "kill"}), backend="process", **ignored) as workers:
        workers.sample()
        batch = workers.sample()
        assert batch.count == 2 * STEPS
        assert (1, 0, STEPS) not in rows(batch), "nothing of the broken fragment"
        assert {"died", "discarded"} <= {event.kind for event in workers.events()}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"restart_failed_env_runners": False, "ignore_env_runner_failures": True}, "worker 1"),
        ({"num_consecutive_env_runner_failures_tolerance": 2}, "3 workers died in a row"),
    ],
)
def test_with_nobody_left_or_too_many_deaths_in_a_row_the_set_has_failed(warm_processes, settings, words):
    play = Play({(1, life, 1): "kill" for life in range(9)})
    with toy_set(play, 1, "process", **settings) as workers, pytest.raises(FleetFailed, match=words):
        workers.sample()


def test_late_fragments_are_part_of_the_next_batch(warm_processes, tmp_path):
    gate = Gate.at(tmp_path / "gate")
    with toy_set(Play({(1, 0, 1): gate}), backend="process") as workers:
        assert workers_of(workers.sample(timeout_seconds=3.0)) == [2]
        assert workers.healthy_worker_ids() == [1, 2], "late is not dead"
        gate.open()
        assert rows(workers.sample())[::STEPS] == [(1, 0, 0), (2, 0, STEPS)]
        assert [event.kind for event in workers.events()] == ["late"]


def test_when_no_fragment_is_in_time_that_is_said(warm_processes, tmp_path):
    gate = Gate.at(tmp_path / "gate")
    with toy_set(Play({(1, 0, 1): gate}), 1, "process", sample_timeout_s=0.01) as workers:
        with pytest.raises(WorkerLate, match="no fragment") as raised:
            workers.sample()
        assert raised.value.workers == (1,)
        gate.open()
        assert rows(workers.sample(timeout_seconds=60.0)) == [(1, 0, t) for t in range(STEPS)]
