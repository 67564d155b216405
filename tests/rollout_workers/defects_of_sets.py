"""What must not happen in a set, wherever its workers live; each function leaves the set in working order."""

import pytest
from defect_toys import DEFAULT, ENVS, LENGTH, ROWS, arm, kill, only, pid
from toy_rollout_worker import Broken

from swath.errors import WorkerLate
from toys import exists

GRACE_S = 60.0
"""Of a process that was ended, to be gone."""


def _acted_with(batch, version):
    """All rows but the first of an env, which may have waited since another env raised."""
    versions = batch["policy_version"].reshape(-1, LENGTH)
    assert set(versions[:, 1:].ravel().tolist()) == {version}


def a_kill_while_sampling(workers):
    workers.sample()
    workers.sync_filters()
    seen = workers.local_worker().filters[DEFAULT].rs.n
    version = workers.sync_weights()
    arm(workers, 1, "kill")
    batch = workers.sample()
    assert batch.count == 2 * ROWS
    _acted_with(batch, version)
    only(workers, "sample", 1, healthy_only=False)
    life, (versions, pushed) = only(workers, lambda worker: (worker.life, worker.first), 1)
    assert (life > 0, versions) == (True, {version})
    assert pushed >= seen + ROWS, "on top of the restored statistics"


def _raises(workers, words, call):
    before = workers.foreach_worker(pid), workers.num_remote_worker_restarts()
    with pytest.raises(Broken, match=words):
        call()
    assert (workers.foreach_worker(pid), workers.num_remote_worker_restarts()) == before
    assert workers.sample().count == 2 * ROWS


def _raise_in_2(worker):
    if worker.worker_index == 2:
        raise Broken("a function raised")


def _break_policy(worker):
    worker.get_policy().broken = True


def a_function_that_raises(workers):
    _raises(workers, "a function raised", lambda: workers.foreach_worker(_raise_in_2))


def an_env_that_raises(workers):
    arm(workers, 2, "raise")
    _raises(workers, "an env raised", workers.sample)


def a_policy_that_raises(workers):
    only(workers, _break_policy, 2)
    _raises(workers, "a policy raised", workers.sample)


def a_call_that_is_late(workers, gate):
    arm(workers, 1, gate)
    with pytest.raises(WorkerLate):
        only(workers, "sample", 1, timeout_seconds=0.05)
    gate.await_arrival()
    assert workers.foreach_worker_async("ping", worker_ids=[1]) == 0, "nothing queues behind it"
    assert only(workers, "ping", 2) == "pong"
    gate.open()
    ((worker, batch),) = workers.fetch_ready_async_reqs(tags="late", timeout_seconds=None)
    assert (worker, batch.count) == (1, ROWS)
    assert only(workers, "ping", 1) == "pong"


def an_end_that_waits_for_who_hangs(workers, gate):
    arm(workers, 1, gate)
    pids = workers.foreach_worker(pid, local_worker=False)
    workers.foreach_worker_async("sample", worker_ids=[1])
    gate.await_arrival()
    workers.stop(timeout_s=0.1)
    workers.stop()
    assert not [process for process in pids if exists(process, GRACE_S)]


def old_weights_after_new_ones(workers, gate):
    arm(workers, 1, gate)
    workers.foreach_worker_async("sample", worker_ids=[1])
    gate.await_arrival()
    for _ in range(5):
        version = workers.sync_weights()
    gate.open()
    ((_, batch),) = workers.fetch_ready_async_reqs(timeout_seconds=None)
    assert max(batch["policy_version"]) < version
    _acted_with(workers.sample(), version)


def seeds_that_are_shared(workers):
    workers.foreach_worker("sample")
    seeds = [seed for each in workers.foreach_env(lambda env: env.np_random_seed) for seed in each]
    assert (len(seeds), len(set(seeds))) == (3 * ENVS, 3 * ENVS)
    assert seeds[:ENVS] == [7, 8]
    batches = [batch for _ in range(3) for batch in workers.foreach_worker("sample", kwargs={"force_reset": True})]
    starts = [tuple(row) for batch in batches for row in batch["obs"][batch["t"] == 0].tolist()]
    assert len(set(starts)) == len(starts) >= 9 * ENVS


def _restarted(workers):
    """Some worker began another life before, or now."""
    if not workers.num_remote_worker_restarts():
        workers.foreach_worker(kill, worker_ids=[1], local_worker=False)
        assert workers.probe_unhealthy_workers() == [1]


def a_replacement_that_does_not_know_it(workers):
    _restarted(workers)
    told = lambda worker: (worker.life > 0, worker.recreated_worker, worker.env_context.recreated_worker)
    found = workers.foreach_worker(told)
    assert found[0] == (False, False, False)
    assert set(found) == {(False, False, False), (True, True, True)}
