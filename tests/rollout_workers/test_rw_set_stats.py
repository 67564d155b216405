"""What a set says of itself while it works: frames that were handed out, lives, versions."""

import io
import threading

import pytest
from rich.console import Console
from toy_rollout_worker import STEPS, Broken, Play, ToySet, config

from swath import Progress
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


def test_what_an_env_raised_costs_no_count_of_the_others():
    with inline(Play(acts={(1, 0, 1): "raise"})) as workers:
        with pytest.raises(Broken):
            workers.sample()
        assert said(workers, "frames", "batches", "fragments_lost") == [0, 0, 0]
        workers.sample()
        assert said(workers, "frames", "batches") == [2 * STEPS, 1]


def test_a_worker_that_was_removed_is_not_lost():
    with inline() as workers:
        workers.remove_workers([2])
        assert said(workers, "workers", "workers_alive", "workers_lost", "worker_2/state") == [1, 1, 0, None]


def test_without_remote_workers_frames_are_those_of_the_local_one():
    with inline(n=0) as workers:
        workers.sample()
        assert said(workers, "frames", "policy_version", "workers") == [STEPS, 0, None]


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


def test_a_view_shows_a_set_as_it_shows_a_collector():
    file = io.StringIO()
    with inline() as workers, Progress(Console(file=file, width=200)).watch(workers):
        workers.sample()
    line = file.getvalue().splitlines()[-1]
    assert line.startswith(f"ToySet: {2 * STEPS} frames, ")
    assert "version 1, " in line
    assert "2 of 2 workers" in line
