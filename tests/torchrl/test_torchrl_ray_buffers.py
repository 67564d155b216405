"""TorchRL's replay buffers in an actor of Ray."""

from functools import partial

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import (
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from torchrl.data.replay_buffers.samplers import PrioritizedSampler, RandomSampler, SamplerWithoutReplacement
from torchrl.envs.transforms import DoubleToFloat

import ray_cluster
from swath import RayReplayBuffer


def rows(n, first=0):
    return TensorDict({"x": torch.arange(first, first + n), "y": torch.rand(n, 2, dtype=torch.float64)}, n)


@pytest.fixture(scope="module")
def ray():
    return ray_cluster.up()


@pytest.fixture(scope="module")
def plain(ray):
    buffer = RayReplayBuffer(
        storage=partial(LazyTensorStorage, 100),
        sampler=SamplerWithoutReplacement,
        transform_factory=partial(DoubleToFloat, in_keys=["y"]),
        batch_size=4,
    )
    yield buffer
    buffer.close()


def test_the_default_is_torchrls_and_its_parts_are_built_in_the_actor(plain):
    plain.extend(rows(10))
    assert (len(plain), plain.batch_size, plain.write_count, plain.dim_extend) == (10, 4, 10, 0)
    batches = list(plain)
    assert [batch.shape for batch in batches] == [(4,), (4,), (2,)]
    assert sorted(torch.cat([batch["x"] for batch in batches]).tolist()) == list(range(10))
    assert batches[0]["y"].dtype == torch.float32
    assert plain.sample(3).shape == (3,)
    assert plain.next().shape == (4,)
    assert plain.append_transform(DoubleToFloat(in_keys=["x"])) is plain
    assert repr(plain) == "<RayReplayBuffer ReplayBuffer: up>"


def test_it_is_saved_and_restored_and_emptied(plain, tmp_path):
    plain.empty()
    plain.extend(rows(10))
    for save, load in ((plain.dumps, plain.loads), (plain.save, plain.load)):
        save(tmp_path)
        plain.empty()
        assert len(plain) == 0
        load(tmp_path)
        assert plain[:]["x"].tolist() == list(range(10))
    state = plain.state_dict()
    plain.empty()
    plain.load_state_dict(state)
    assert len(plain) == 10
    assert plain.stats()["write_count"] == 10


class Weighted(RandomSampler):
    """Draws rows by their priorities; TorchRL's own needs its compiled part, which is not everywhere."""

    def __init__(self):
        super().__init__()
        self.weights = torch.zeros(100)

    def update_priority(self, index, priority, **_):
        self.weights[torch.as_tensor(index)] = torch.as_tensor(priority).reshape(-1).float()

    def sample(self, storage, batch_size):
        return torch.multinomial(self.weights, batch_size, replacement=True), {}


def test_priorities_reach_the_actor(ray):
    buffer = RayReplayBuffer(
        storage=partial(ListStorage, 50), sampler=Weighted, batch_size=5, replay_buffer_cls=TensorDictReplayBuffer
    )
    index = buffer.extend(rows(10))
    buffer.update_priority(index[:3], torch.ones(3))
    sample = buffer.sample()
    assert set(sample["x"].tolist()) <= {0, 1, 2}
    buffer.client().update_priority(sample["index"], torch.zeros(5))
    buffer.update_priority(index[7:], torch.ones(3))
    assert set(sample["x"].tolist()).isdisjoint(buffer.sample(100)["x"].tolist())
    buffer.update_tensordict_priority(sample)
    buffer.add(rows(1, first=99)[0])
    assert len(buffer) == 11
    buffer.close()


def has_segment_trees():
    try:
        return bool(PrioritizedSampler(max_capacity=2, alpha=1.0, beta=1.0))
    except RuntimeError:
        return False


@pytest.mark.skipif(not has_segment_trees(), reason="this TorchRL was installed without its compiled part")
def test_the_prioritized_buffer(ray):
    buffer = RayReplayBuffer(
        alpha=1.0,
        beta=1.0,
        storage=partial(ListStorage, 50),
        batch_size=5,
        replay_buffer_cls=TensorDictPrioritizedReplayBuffer,
    )
    buffer.update_priority(buffer.extend(rows(10)), torch.full((10,), 1e-6))
    sample = buffer.sample()
    sample["td_error"] = torch.full((5,), 1e6)
    buffer.update_tensordict_priority(sample)
    assert set(buffer.sample(20)["x"].tolist()) <= set(sample["x"].tolist())
    buffer.close()


def test_a_plain_buffer_of_theirs_is_its_own_client_and_written_by_this_process():
    buffer = ReplayBuffer(storage=ListStorage(10))
    assert getattr(buffer, "client", lambda: buffer)() is buffer
