"""What must not happen: the peer's defects, by their numbers, and what holds instead of each, wherever workers live.

Those that are not here have their tests with what they are about.
"""

import gc
import os
import sys
import tracemalloc
from itertools import pairwise

import cloudpickle
import numpy as np
import pytest
import set_toys
from rw_toys import LONG, cartpole, counting_worker, made_of
from set_toys import DEFAULT, STEPS, Broken, Play, ToyPolicy, toy_set

import ray_cluster
import toys
from swath.errors import WorkerLate
from swath.rollout_workers import RandomPolicy
from swath.testing.counting import Counting, Script
from toys import DEADLINE_S, exists

apart = pytest.mark.parametrize("workers", ["process"], indirect=True)
on_ray = pytest.mark.parametrize("workers", ["process", "ray"], indirect=True)
anywhere = pytest.mark.parametrize("workers", ["inline", "process", "ray"], indirect=True)


class Fragile(ToyPolicy):
    """Raises once when `broken` is set."""

    broken = False

    def compute_actions(self, *args, **kwargs):
        if self.broken:
            self.broken = False
            raise Broken("a policy raised")
        return super().compute_actions(*args, **kwargs)


def note_first(*, worker, samples, **_):
    """Note what a worker's first batch was made with."""
    if not hasattr(worker, "first"):
        worker.first = set(samples["policy_version"].tolist()), worker.filters[DEFAULT].rs.n


@pytest.fixture(scope="module", autouse=True)
def by_value():
    """Workers on Ray do not find modules of tests."""
    modules = [sys.modules[__name__], set_toys, toys]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture(scope="module")
def workers(request, by_value):
    """Two workers in a place, and the local one; each test leaves them in working order."""
    if request.param == "ray":
        ray_cluster.up()
    settings = {"observation_filter": "MeanStdFilter", "callback_functions": {"on_sample_end": note_first}}
    with toy_set(backend=request.param, options={"default_policy_class": Fragile}, **settings) as worker_set:
        yield worker_set


def call_one(workers, func, worker, **options):
    """Return the answer of one remote worker."""
    (answer,) = workers.foreach_worker(func, worker_ids=[worker], local_worker=False, **options)
    return answer


def arm(workers, worker, action):
    """Let the next sample of a worker do this."""
    call_one(workers, lambda w: w.env.acts.update({w.env.steps // STEPS + 1: action}), worker)


def pid(worker):
    return os.getpid()


def raise_in_2(worker):
    if worker.worker_index == 2:
        raise Broken("a function raised")


def require_acted_with(batch, version):
    """All rows but the first of an env, which may have waited since another env raised."""
    assert set(batch["policy_version"].reshape(-1, STEPS)[:, 1:].ravel().tolist()) == {version}


@on_ray
def test_r1_r19_after_a_kill_a_batch_is_whole_and_the_next_life_knows_all(workers):
    workers.sample()
    workers.sync_filters()
    n_seen = workers.local_worker().filters[DEFAULT].rs.n
    version = workers.sync_weights()
    arm(workers, 1, "kill")
    batch = workers.sample()
    assert batch.count == 2 * STEPS
    require_acted_with(batch, version)
    call_one(workers, "sample", 1, healthy_only=False)
    again, (versions, pushed) = call_one(workers, lambda worker: (worker.recreated_worker, worker.first), 1)
    assert (again, versions) == (True, {version})
    assert pushed >= n_seen + STEPS, "on top of the restored statistics"


@anywhere
@pytest.mark.parametrize("source", ["a function", "an env", "a policy"])
def test_r2_r10_an_exception_keeps_its_type_and_replaces_no_worker(workers, source):
    if source == "an env":
        arm(workers, 2, "raise")
    elif source == "a policy":
        call_one(workers, lambda worker: setattr(worker.get_policy(), "broken", True), 2)
    before = workers.foreach_worker(pid), workers.num_remote_worker_restarts()
    with pytest.raises(Broken, match=f"{source} raised"):
        workers.foreach_worker(raise_in_2) if source == "a function" else workers.sample()
    assert (workers.foreach_worker(pid), workers.num_remote_worker_restarts()) == before
    assert workers.sample().count == 2 * STEPS


@apart
def test_r3_a_late_answer_is_kept_and_nothing_queues_behind_it(workers, gate):
    workers.events()
    arm(workers, 1, gate)
    with pytest.raises(WorkerLate) as raised:
        workers.foreach_worker("sample", worker_ids=[1], timeout_seconds=0.05)
    gate.await_arrival()
    assert raised.value.workers == (1,)
    (_, local_batch), (_, error) = raised.value.results
    assert (local_batch.count, error.exception) == (STEPS, raised.value)
    with pytest.raises(WorkerLate, match="was not asked"):
        call_one(workers, "ping", 1, timeout_seconds=0.01)
    assert workers.foreach_worker_async("ping", worker_ids=[1]) == 0
    assert call_one(workers, "ping", 2) == "pong"
    gate.open()
    (late,) = workers.fetch_ready_async_reqs(tags="late", timeout_seconds=None)
    assert (late.worker, late.result.count, late.error) == (1, STEPS, None)
    assert call_one(workers, "ping", 1) == "pong"
    assert [event.kind for event in workers.events()] == ["late"]


@apart
def test_r5_a_worker_that_was_busy_has_the_last_weights_before_its_next_fragment(workers, gate):
    arm(workers, 1, gate)
    assert workers.foreach_worker_async("sample", worker_ids=[1]) == 1
    gate.await_arrival()
    with pytest.raises(WorkerLate, match=r"workers \[1(, 2)?\] have not applied version"):
        workers.sync_weights(timeout_seconds=0.01)
    for _ in range(5):
        version = workers.sync_weights()
    gate.open()
    ((_, batch),) = workers.fetch_ready_async_reqs(timeout_seconds=None)
    assert max(batch["policy_version"]) < version
    require_acted_with(workers.sample(), version)


@pytest.mark.parametrize("place", ["process", "ray"])
def test_r4_stop_does_not_wait_for_a_hanging_worker(place, gate):
    if place == "ray":
        ray_cluster.up()
    workers = toy_set(Play({(1, 0, 1): gate}), 1, place)
    pids = workers.foreach_worker(pid, local_worker=False)
    assert workers.foreach_worker_async("sample") == 1
    gate.await_arrival()
    workers.stop(timeout_s=0.1)
    workers.stop()
    assert not [process for process in pids if exists(process, DEADLINE_S)]


def test_r12_whole_episodes_begin_from_different_states():
    with made_of(cartpole, RandomPolicy, batch_mode="complete_episodes", rollout_fragment_length=20) as worker:
        batches = [worker.sample() for _ in range(4)]
    starts = [tuple(row) for batch in batches for row in batch["obs"][batch["t"] == 0].tolist()]
    assert len(set(starts)) == len(starts) >= 4


@pytest.mark.parametrize("mode", ["truncate_episodes", "complete_episodes"])
def test_r13_short_episodes_are_not_too_many(mode):
    settings = {"num_envs_per_env_runner": 16, "rollout_fragment_length": 35, "batch_mode": mode}
    with counting_worker(Counting(script=Script((10, 100), ("terminated",))), **settings) as worker:
        batches = [worker.sample() for _ in range(40)]
        lengths = [metrics.episode_length for metrics in worker.get_metrics()]
    assert set(lengths) == {10, 100}
    assert np.mean(lengths) == pytest.approx(55, abs=3)
    if mode == "complete_episodes":
        lengths = [len(part) for batch in batches for part in batch.split_by_episode()]
        assert np.mean(lengths) == pytest.approx(55, abs=3)


def traced_memory():
    gc.collect()  # also empties Python's stores of tuples to use again, which grow with the first calls
    return tracemalloc.get_traced_memory()[0]


LISTENING = {"callback_functions": {"on_episode_step": lambda *, episode, **_: episode.length}}


@pytest.mark.parametrize("settings", [LISTENING, {"observation_filter": "MeanStdFilter"}], ids=["listening", "filter"])
def test_r14_memory_stays_flat_while_an_episode_goes_on(settings, request):
    worker, after = counting_worker(LONG, rollout_fragment_length=64, policy=RandomPolicy, **settings), []
    tracemalloc.start()
    request.addfinalizer(tracemalloc.stop)
    with worker:
        for _ in range(4):
            for _ in range(6):
                worker.sample()
            after.append(traced_memory())
    # The least of three: the first calls fill stores, and other threads hold memory, too.
    grown = min(later - earlier for earlier, later in pairwise(after))
    assert grown < 6 * 3 * 64 * 8, "less than one number per step"
