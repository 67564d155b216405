"""How a set is built, grows, shrinks and ends; workers that die, hang or cannot be built."""

import os
import random
import sys
from itertools import product

import pytest
from set_toys import SPACES, STEPS, Broken, Play, ToyPolicy, config, rows, toy_set, workers_of

from swath.errors import FleetFailed, WorkerLate, WorkerLost
from swath.rollout_workers import WorkerSet


def index(worker):
    return worker.worker_index


def test_workers_get_their_index_and_arguments(tmp_path):
    check = lambda env, context: None
    with toy_set(options={"validate_env": check, "logdir": str(tmp_path)}) as workers:
        local, made_of = workers.local_worker(), workers.foreach_worker("creation_args")
        names = ("worker_index", "num_workers", "recreated_worker", "log_dir")
        facts = [tuple(arguments[name] for name in names) for arguments in made_of]
        assert facts == [(n, 2, False, str(tmp_path / f"worker_{n}")) for n in range(3)]
        assert (made_of[0]["validate_env"], made_of[0]["default_policy_class"]) == (check, ToyPolicy)
        assert repr(workers) == "<WorkerSet: a local worker; <Fleet 2 workers: 2 up>, version 1>"
    with pytest.raises(AssertionError, match="stopped"):
        local.ping()


def test_arguments_override_the_configs_envs_and_number_of_workers():
    base = config(num_env_runners=2, env=Play())
    for options, n in (({}, 2), ({"num_workers": 1}, 1), ({"num_env_runners": 3}, 3), ({"num_workers": 0}, 0)):
        with WorkerSet(config=base, default_policy_class=ToyPolicy, backend="inline", **options) as workers:
            assert workers.num_remote_workers() == workers.local_worker().config.num_env_runners == n
    assert base.num_env_runners == 2, "the caller's config is as it was"


REFUSED = [
    ({"env_creator": None}, "nothing to make envs with"),
    ({"backend": "thread", "num_workers": 0}, "backend='thread' must be one of"),
    ({"num_env_runners": 2}, "num_workers=1 and num_env_runners=2 are two names"),
    ({"config": config(custom_resources_per_env_runner={"shiny": 1.0})}, "on Ray only"),
    ({"num_workers": -1}, "num_env_runners"),
    ({"num_workers": 1.5}, "num_env_runners"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_invalid_arguments_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        toy_set(options={"num_workers": 1, **options})


def test_a_place_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RuntimeError, match="cannot be used: "):
        toy_set(backend="ray")


def test_the_local_worker_is_wanted_or_not_but_there_is_one_and_without_env_its_spaces_are_worker_1s():
    without, alone = toy_set(options={"local_worker": False}), toy_set(n=0, options={"local_env_runner": False})
    with without, alone:
        assert (without.local_worker(), without.num_healthy_workers()) == (None, 2)
        assert alone.local_worker() is alone.local_env_runner is not None
        assert without.get_spaces()["default_policy"] == SPACES
    with toy_set(create_local_env_runner=False) as workers:
        assert (workers.local_worker().env, workers.local_worker().spaces["default_policy"]) == (None, SPACES)


@pytest.mark.parametrize(
    ("backend", "action", "error", "words"),
    [
        ("inline", "raise", Broken, "an env raised"),
        ("process", "raise", Broken, "an env raised"),
        ("process", "kill", WorkerLost, "worker 2"),
        ("process", "wait", WorkerLate, r"env_runner_restore_timeout_s=0\.5"),
    ],
)
def test_a_set_is_not_built_if_a_worker_cannot_be_built(fork_server, gate, backend, action, error, words):
    act, seconds = (gate, 0.5) if action == "wait" else (action, 120.0)
    with pytest.raises(error, match=words):
        toy_set(Play({}, {(2, 0): act}), 2, backend, env_runner_restore_timeout_s=seconds)


def test_a_set_need_not_wait_for_its_workers(fork_server, gate):
    with toy_set(Play({}, {(2, 0): gate}), 2, "process", validate_env_runners_after_construction=False) as workers:
        gate.await_arrival()
        assert 2 not in workers.healthy_worker_ids()
        gate.open()
        assert set(workers.sample()["policy_version"]) == {1}
        assert workers.foreach_worker(index, local_worker=False, healthy_only=False) == [1, 2]


def test_workers_are_added_and_taken_out():
    with toy_set(Play({}, {(7, 0): "raise"})) as workers:
        workers.add_workers(2, validate=True)
        assert workers.worker_ids() == workers.env_runner_ids() == [1, 2, 3, 4]
        assert workers_of(workers.sample()) == [1, 2, 3, 4]
        workers.foreach_worker_async(index)
        workers.remove_workers([1, 3])
        assert workers.healthy_worker_ids() == [2, 4]
        assert [worker for worker, _ in workers.fetch_ready_async_reqs(timeout_seconds=None)] == [2, 4]
        assert workers_of(workers.sample()) == [2, 4]
        workers.add_workers(1)
        assert workers.worker_ids() == [2, 4, 5]
        assert workers.events() == [], "it was wanted"
        with pytest.raises(ValueError, match="remote workers"):
            workers.remove_workers([1])
        workers.add_workers(num_workers=1)
        with pytest.raises(ValueError, match=r"num_workers|n="):
            workers.add_workers(n=1, num_workers=2)
        with pytest.raises(Broken):
            workers.add_workers(1)
        assert workers_of(workers.sample()) == workers.worker_ids() == [2, 4, 5, 6]


@pytest.mark.parametrize("local_worker", [True, False], ids=["with a local worker", "without"])
def test_added_workers_begin_with_the_merged_filters(local_worker):
    with toy_set(options={"local_worker": local_worker}, observation_filter="MeanStdFilter") as workers:
        workers.sample()
        workers.sync_filters()
        workers.add_workers(1)
        n_seen = workers.foreach_worker(lambda worker: worker.filters["default_policy"].rs.n)
        assert set(n_seen) == {2 * (STEPS + 1)}


def test_returned_workers_are_reported_once_when_they_have_the_newest_weights(fork_server):
    heard = []

    def hear(*, worker_set, worker_ids, is_evaluation, **_):
        versions = worker_set.foreach_worker(
            lambda worker: worker.policy_version, worker_ids=worker_ids, local_worker=False
        )
        heard.append((worker_ids, is_evaluation, versions))

    settings = {"callback_functions": {"on_workers_recreated": hear}, "in_evaluation": True}
    with toy_set(Play({(1, 0, 1): "exit"}), backend="process", **settings) as workers:
        version = workers.sync_weights()
        workers.sample()
        assert workers.probe_unhealthy_workers() == [1]
        assert workers.probe_unhealthy_env_runners() == []
        assert heard == [([1], True, [version])]
        assert workers.num_remote_worker_restarts() == 1
        kinds = [(event.worker, event.life, event.kind) for event in workers.events() if event.kind != "discarded"]
        assert (kinds, workers.events()) == ([(1, 0, "died"), (1, 1, "replaced")], [])


def test_a_lost_worker_has_an_entry_only_with_on_error_return(fork_server):
    kill_1 = lambda worker: os.kill(os.getpid(), 9) if worker.worker_index == 1 else worker.worker_index
    with toy_set(backend="process") as workers:
        assert workers.foreach_worker(kill_1, with_ids=True, local_worker=False) == [(2, 2)]
        assert workers.foreach_worker(index, healthy_only=False) == [0, 1, 2]
        lost, two = workers.foreach_worker(kill_1, on_error="return", local_worker=False)
        assert (type(lost.exception), two) == (WorkerLost, 2)
        workers.probe_unhealthy_workers()
        workers.foreach_worker_async(kill_1)
        assert [tuple(reply) for reply in workers.fetch_ready_async_reqs(timeout_seconds=None)] == [(2, 2)]


def test_a_loss_that_is_not_tolerated_is_raised_by_the_next_call(fork_server):
    kill = lambda worker: os.kill(os.getpid(), 9)
    with toy_set(n=3, backend="process", restart_failed_env_runners=False) as workers:
        with pytest.raises(WorkerLost) as raised:
            workers.foreach_worker(kill, worker_ids=[2], local_worker=False)
        assert raised.value.worker == 2
        assert workers.foreach_worker(index) == [0, 1, 3]
        workers.foreach_worker_async(kill, worker_ids=[1])
        with pytest.raises(WorkerLost) as raised:
            workers.fetch_ready_async_reqs(timeout_seconds=None)
        assert raised.value.worker == 1
        assert [event.kind for event in workers.events()] == ["died", "given up"] * 2
        with pytest.raises(FleetFailed):
            workers.foreach_worker(kill, local_worker=False)


def test_a_worker_that_hangs_is_ended_with_its_stacks_written_and_comes_back(fork_server, gate, tmp_path):
    options = {"options": {"logdir": str(tmp_path)}, "env_runner_hang_timeout_s": 1.0}
    play, stacks = Play({(1, life, 1): gate for life in range(20)}), tmp_path / "worker_1" / "stacks.txt"
    with toy_set(play, 1, "process", **options) as workers:
        while "go_through" not in (stacks.read_text() if stacks.exists() else ""):  # on a busy machine it dies first
            with pytest.raises(WorkerLate, match=r"worker 1 \(life \d+\).*env_runner_hang_timeout_s=1"):
                workers.foreach_worker("sample", local_worker=False)
            assert workers.probe_unhealthy_workers() == [1]
        gate.open()
        _, life, _ = rows(workers.sample())[0]
        assert life > 0
        events = workers.events()
        assert [event.kind for event in events] == ["hung", "replaced"] * life
        assert "took longer than env_runner_hang_timeout_s=1" in events[0].text, "as users know it"


def test_batches_have_their_size_and_the_newest_weights_whichever_worker_dies(fork_server):
    chance = random.Random(0)
    moments = product((1, 2, 3), range(40), range(1, 9))
    actions = {moment: "kill" for moment in moments if chance.random() < 0.35}
    with toy_set(Play(actions), 3, "process", num_consecutive_env_runner_failures_tolerance=40) as workers:
        delivered = set()
        for _ in range(5):
            version = workers.sync_weights()
            batch = workers.sample()
            assert batch.count == 3 * STEPS
            assert not delivered & set(rows(batch)), "nothing is delivered twice"
            delivered |= set(rows(batch))
            assert max(batch["policy_version"]) == version
            assert min(batch["policy_version"]) >= version - 1, "a fragment that waited for its delivery, at most"
        deaths = sum(event.kind == "died" for event in workers.events())
        assert deaths
        assert deaths == workers.num_remote_worker_restarts()
