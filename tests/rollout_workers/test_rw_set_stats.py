"""What a set says of itself while it works: counts, lives, versions, under the names of collectors; and a view."""

import io
import threading
from types import SimpleNamespace

import pytest
from rich.console import Console
from toy_rollout_worker import STEPS, Broken, Play, ToySet, config

from swath import Progress
from swath.rollout_workers.worker_set.fragments import Fragments
from swath.rollout_workers.worker_set.telling import Account, Told
from swath.testing.toy_worker import Gate


def inline(play=None, n=2, **settings):
    return ToySet(env_creator=play or Play(), config=config(**settings), num_workers=n, backend="inline")


def said(workers, *names):
    facts = workers.stats("both")
    return [facts.get(name) for name in names]


def test_what_was_sampled_is_counted_by_all_and_by_worker():
    with inline() as workers:
        assert said(workers, "frames", "batches", "episodes", "episode_return") == [0, 0, 0, None]
        workers.sample()
        workers.sample()
        assert said(workers, "frames", "worker_frames", "batches") == [4 * STEPS, 4 * STEPS, 2]
        assert said(workers, "episodes", "episode_return", "episode_length") == [4, 10.0 * STEPS, STEPS]
        assert said(workers, "workers", "workers_alive", "restarts", "workers_lost", "late") == [2, 2, 0, 0, 0]
        facts = workers.stats("per_worker")
        of_worker = {"frames": 2 * STEPS, "life": 0, "state": "up", "policy_version": 1, "staleness": 0}
        assert facts == {f"worker_{n}/{name}": fact for n in (1, 2) for name, fact in of_worker.items()}
        times = workers.stats()
        assert 0 <= times["seconds_waiting"] <= times["seconds"]
        assert times["fps"] > 0
        assert {**times, **facts}.keys() == workers.stats("both").keys()


def test_another_view_is_refused():
    with inline() as workers, pytest.raises(ValueError, match="workers must be one of"):
        workers.stats("all")


@pytest.mark.parametrize(
    "ask",
    [
        lambda workers: workers.foreach_worker("sample", local_worker=False),
        lambda workers: workers.foreach_worker(lambda worker: worker.sample().count, local_worker=False),
        lambda workers: (
            workers.foreach_worker_async("sample"),
            workers.fetch_ready_async_reqs(timeout_seconds=None),
        ),
    ],
    ids=["by name", "learned from over there", "asynchronously"],
)
def test_it_counts_by_whatever_call_workers_sampled(ask):
    with inline() as workers:
        ask(workers)
        assert said(workers, "frames", "batches", "episodes") == [2 * STEPS, 2, 2]
        assert said(workers, "worker_1/frames", "worker_2/frames") == [STEPS, STEPS]


def test_a_worker_that_samples_with_old_weights_is_behind():
    with inline() as workers:
        workers.sample()
        workers.foreach_worker_async("sample", worker_ids=[2])
        workers.sync_weights()
        workers.sync_weights()
        workers.fetch_ready_async_reqs(timeout_seconds=None)
        assert said(workers, "staleness", "worker_1/staleness", "worker_2/staleness") == [2, 0, 2]
        assert said(workers, "policy_version", "policy_version_min", "worker_2/policy_version") == [3, 1, 1]
        workers.sample()
        assert said(workers, "staleness", "policy_version_min", "worker_2/policy_version") == [0, 3, 3]


def test_a_worker_that_is_killed_lives_again_and_its_fragment_is_lost(warm_processes):
    play = Play(acts={(1, 0, 2): "kill"})
    with ToySet(env_creator=play, config=config(), num_workers=2, backend="process") as workers:
        workers.sample()
        workers.sample()
        workers.probe_unhealthy_workers()
        assert said(workers, "restarts", "fragments_lost", "workers_lost", "workers_alive") == [1, 1, 0, 2]
        assert said(workers, "worker_1/life", "worker_1/state", "worker_2/life") == [1, "up", 0]
        assert said(workers, "frames", "episodes") == [4 * STEPS, 4]


def test_a_fragment_whose_worker_dies_between_a_look_and_the_next_request_is_lost_once(monkeypatch):
    settle = Fragments._settle

    def after_a_death(fragments, crew):
        if fragments._unanswered():
            monkeypatch.undo()
            crew.backend.kill(crew.fleet.up[2])
        settle(fragments, crew)

    monkeypatch.setattr(Fragments, "_settle", after_a_death)
    with inline() as workers:
        assert workers.sample().count == 2 * STEPS
        assert said(workers, "restarts", "fragments_lost") == [1, 1]
        assert [event.kind for event in workers.events()].count("discarded") == 1


def test_what_an_env_raised_costs_no_count_of_the_others():
    with inline(Play(acts={(1, 0, 1): "raise"})) as workers:
        with pytest.raises(Broken):
            workers.sample()
        assert said(workers, "frames", "batches", "fragments_lost") == [0, 0, 0]
        workers.sample()
        assert said(workers, "frames", "batches") == [2 * STEPS, 1]


def test_a_worker_that_was_removed_is_not_lost():
    with inline() as workers:
        workers.sample()
        workers.remove_workers([2])
        assert said(workers, "workers", "workers_alive", "workers_lost", "worker_2/state") == [1, 1, 0, None]
        assert said(workers, "frames") == [2 * STEPS]


def test_without_remote_workers_it_tells_of_the_local_one():
    with inline(n=0) as workers:
        workers.sample()
        workers.local_worker().sample()
        assert said(workers, "frames", "episodes", "episode_return", "workers") == [2 * STEPS, 2, 10.0 * STEPS, None]
        assert said(workers, "worker_0/frames", "worker_0/state", "worker_0/life") == [2 * STEPS, "ready", 0]
    assert said(workers, "worker_0/state") == ["closed"]


def test_a_set_that_builds_nothing_has_nothing_to_tell():
    workers = ToySet(config=config(), _setup=False)
    assert said(workers, "frames", "policy_version", "worker_0/state") == [0, 0, None]
    workers.stop()


def test_it_tells_after_its_end():
    with inline() as workers:
        workers.sample()
    assert said(workers, "frames", "workers", "workers_alive", "worker_1/state") == [2 * STEPS, 2, 0, "closed"]


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
    assert f"return 30, length {STEPS}, " in line
    assert "version 1, 2 of 2 workers, 0 behind" in line


def test_a_worker_tells_what_is_new_since_it_told_last():
    worker = SimpleNamespace(counters={}, recent_episodes=(), policy_version=4)

    def count(steps, episodes, faulty):
        worker.counters = {"env_steps_sampled": steps, "episodes": episodes, "episodes_faulty": faulty}

    count(100, 5, 1)
    account = Account(worker)
    assert account.tell() == Told(version=4)
    count(120, 7, 2)
    worker.recent_episodes = ((1.0, 10), (2.0, 20), (3.0, 30))
    assert account.tell() == Told(20, 2, 1, ((2.0, 20), (3.0, 30)), 4)
    assert account.tell(env_steps=9) == Told(9, version=4)
    count(500, 100, 2)
    assert account.tell() == Told(380, 93, 0, worker.recent_episodes, 4)
