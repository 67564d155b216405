"""What a set says of itself while it works: frames that were handed out, lives, versions."""

import threading

import pytest
from toy_rollout_worker import STEPS, Play, ToySet, config

from toys import Gate


def inline(play=None, n=2, **settings):
    return ToySet(env_creator=play or Play(), config=config(**settings), num_workers=n, backend="inline")


def said(workers, *names):
    facts = workers.stats("both")
    return [facts.get(name) for name in names]


def test_what_was_sampled_is_counted_by_all_and_by_worker():
    with inline() as workers:
        assert said(workers, "frames", "batches") == [0, 0]
        workers.sample()
        workers.sample()
        assert said(workers, "frames", "batches") == [4 * STEPS, 2]
        assert said(workers, "workers", "workers_alive", "restarts", "workers_lost", "late") == [2, 2, 0, 0, 0]
        facts = workers.stats("per_worker")
        of_worker = {"frames": 2 * STEPS, "life": 0, "state": "up", "policy_version": 1, "staleness": 0}
        assert facts == {f"worker_{n}/{name}": fact for n in (1, 2) for name, fact in of_worker.items()}
        times = workers.stats()
        assert 0 <= times["seconds_waiting"] <= times["seconds"]
        assert times["fps"] > 0
        assert {**times, **facts}.keys() == workers.stats("both").keys()
    assert said(workers, "frames", "workers_alive", "worker_1/state") == [4 * STEPS, 0, "closed"]
    with pytest.raises(ValueError, match="workers must be one of"):
        workers.stats("all")


def test_a_worker_that_was_not_asked_since_weights_were_published_is_behind():
    with inline() as workers:
        workers.sync_weights()
        workers.sync_weights()
        assert said(workers, "policy_version", "policy_version_min", "worker_2/policy_version") == [3, 1, 1]
        assert said(workers, "staleness", "worker_1/staleness") == [2, 2]
        workers.sample()
        workers.worker_ids()
        workers.healthy_worker_ids()
        assert said(workers, "staleness", "policy_version_min", "worker_2/policy_version") == [0, 3, 3]


def test_a_worker_that_is_killed_lives_again_and_its_fragment_is_lost(warm_processes):
    play = Play(acts={(1, 0, 2): "kill"})
    with ToySet(env_creator=play, config=config(), num_workers=2, backend="process") as workers:
        workers.sample()
        workers.sample()
        workers.probe_unhealthy_workers()
        assert said(workers, "restarts", "fragments_lost", "workers_lost", "workers_alive") == [1, 1, 0, 2]
        assert said(workers, "worker_1/life", "worker_1/state", "worker_2/life") == [1, "up", 0]
        assert said(workers, "frames") == [4 * STEPS]


def test_any_thread_may_ask_while_another_one_waits_for_workers(tmp_path):
    gate = Gate.at(tmp_path / "gate")
    with inline(Play(acts={(1, 0, 1): gate})) as workers:
        sampling = threading.Thread(target=workers.sample)
        sampling.start()
        try:
            gate.await_arrival()
            assert said(workers, "frames", "workers_alive") == [0, 2]
        finally:
            gate.open()
            sampling.join()
        assert said(workers, "frames") == [2 * STEPS]
