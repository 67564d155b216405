"""TorchRL's replay buffers, in this process and on Ray, filled by every kind of collector: each row once."""

from functools import cache, partial

import gymnasium
import pytest
import torch
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    RayReplayBuffer,
    ReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from torchrl_table import table

import ray_cluster
from swath import Collector, ExplorationType, MultiAsyncCollector, MultiSyncCollector
from toys import end

pytestmark = pytest.mark.usefixtures("fork_server")

SCRIPTED = next(case for case in table() if case.name == "composed")
SHARE, FRAMES, SIZE = 12, 48, 100
IDS = ("collector", "traj_ids")
KEYS = ["observation", "action", "step_count", ("next", "observation"), ("next", "reward"), ("next", "done")]
OPTIONS = {"total_frames": FRAMES, "exploration_type": ExplorationType.DETERMINISTIC}


def many(kind, *, size, **options):
    return kind([SCRIPTED.env] * 2, SCRIPTED.policy(), frames_per_batch=size, **OPTIONS, **options)


KINDS = {
    "here": lambda **options: Collector(SCRIPTED.env, SCRIPTED.policy(), frames_per_batch=SHARE, **OPTIONS, **options),
    "sync": partial(many, MultiSyncCollector, size=2 * SHARE),
    "async": partial(many, MultiAsyncCollector, size=SHARE),
    "ray sync": partial(many, ray_cluster.collector, size=2 * SHARE, sync=True),
    "ray async": partial(many, ray_cluster.collector, size=SHARE, sync=False),
}


@cache
def one_worker():
    """Return the rows of one env, as many as one worker could collect."""
    env, policy = SCRIPTED.env, SCRIPTED.policy()
    with Collector(env, policy, frames_per_batch=FRAMES, exploration_type=ExplorationType.DETERMINISTIC) as collector:
        return collector.next()


def require_each_row_once(buffer, n_workers):
    rows = buffer[:]
    assert len(rows) == len(buffer) == FRAMES
    found = 0
    for worker in range(n_workers):
        worker_rows, expected = rows[rows[IDS] >> 47 == worker], one_worker()
        found += len(worker_rows)
        assert (worker_rows[IDS] - (worker << 47)).tolist() == expected[IDS][: len(worker_rows)].tolist()
        for key in KEYS:
            assert torch.equal(worker_rows[key], expected[key][: len(worker_rows)]), key
    assert found == FRAMES


def finish(collector):
    """Wait until the background collection is complete."""
    end(collector._background._thread)
    assert not collector.is_running()
    assert collector.stats()["frames"] == FRAMES


def fill_in_the_background(kind, buffer):
    with KINDS[kind](replay_buffer=buffer) as collector:
        collector.start()
        with collector.pause(timeout=300):
            assert len(buffer) == collector.stats()["frames"]
        finish(collector)


@pytest.mark.parametrize(
    ("kind", "storage"), [("here", LazyMemmapStorage), *((kind, LazyTensorStorage) for kind in KINDS)]
)
def test_a_buffer_here_is_filled_in_the_background_with_each_row_once(storage, kind):
    buffer = TensorDictReplayBuffer(storage=storage(SIZE), batch_size=8)
    fill_in_the_background(kind, buffer)
    require_each_row_once(buffer, n_workers=1 if kind == "here" else 2)
    assert buffer.sample().shape == (8,)


@pytest.mark.parametrize("kind", ["here", "sync", "async"])
def test_a_prioritized_buffer_draws_collected_rows_by_priority(kind):
    buffer = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, storage=LazyTensorStorage(SIZE), batch_size=8)
    fill_in_the_background(kind, buffer)
    require_each_row_once(buffer, n_workers=1 if kind == "here" else 2)
    stored, preferred = buffer[:], FRAMES - 1
    buffer.update_priority(torch.arange(FRAMES), torch.zeros(FRAMES))
    buffer.update_priority(preferred, 1.0)
    drawn = buffer.sample()
    assert drawn["index"].tolist() == [preferred] * 8
    for key in KEYS:
        assert torch.equal(drawn[key], stored[key][drawn["index"]]), key


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("ndim", [1, 2])
def test_an_entry_is_a_frame_unless_the_storage_keeps_more_dimensions(workers, ndim):
    buffer = ReplayBuffer(storage=LazyTensorStorage(SIZE, ndim=ndim), batch_size=8)
    options = {"frames_per_batch": 24, "total_frames": 48, "envs_per_worker": 3, "replay_buffer": buffer}
    many = {} if workers is None else {"num_collectors": workers, "backend": "thread", "sync": True}
    with Collector("CartPole-v1", **options, **many) as collector:
        list(collector)
    assert len(buffer) == 48
    assert buffer[:].shape == ((48,) if ndim == 1 else (3, 48 // 3))


def test_rows_that_are_no_frames_are_not_entries():
    mode = gymnasium.vector.AutoresetMode.NEXT_STEP
    make = partial(
        gymnasium.make_vec, "CartPole-v1", 3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}
    )
    buffer = ReplayBuffer(storage=LazyTensorStorage(1_000))
    with Collector(make, frames_per_batch=300, total_frames=600, replay_buffer=buffer) as collector:
        list(collector)
        frames = collector.stats()["frames"]
    assert len(buffer) == frames < 900
    assert buffer[:]["collector", "mask"].all()


@pytest.fixture
def on_ray():
    ray_cluster.up()
    options = {"remote_config": {"num_cpus": 1}, "ray_init_config": {"ignore_reinit_error": True}}
    buffer = RayReplayBuffer(storage=partial(LazyTensorStorage, SIZE), batch_size=8, **options)
    yield buffer
    buffer.close()


@pytest.mark.parametrize("kind", ["here", "ray async"])
def test_torchrls_buffer_on_ray_is_filled_in_the_background_with_each_row_once(kind, on_ray):
    fill_in_the_background(kind, on_ray)
    require_each_row_once(on_ray, n_workers=1 if kind == "here" else 2)
    assert on_ray.sample().shape == (8,)
