"""TorchRL's envs, policies and replay buffers with workers in processes and on Ray: the data of a collector here."""

from functools import cache
from math import prod

import pytest
import torch
from torchrl.data import (
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    TensorDictReplayBuffer,
)
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement, SliceSampler
from torchrl_differences import differences
from torchrl_table import table

import ray_cluster
from swath import Collector, ExplorationType, MultiAsyncCollector, MultiSyncCollector

N_BATCHES = 2
CASES = [pytest.param(case, id=case.name) for case in table()]
IDS = ("collector", "traj_ids")


@pytest.fixture(params=["process", "ray"])
def many(request):
    """Builds a collector of many workers in a place, by whether it is synchronous."""
    if request.param == "ray":
        return ray_cluster.collector
    request.getfixturevalue("nursery")
    return lambda *args, sync, **options: (MultiSyncCollector if sync else MultiAsyncCollector)(*args, **options)


def frames_of(case):
    return case.steps * prod(case.env().batch_size)


def options_for(frames, **options):
    return {"total_frames": N_BATCHES * frames, "exploration_type": ExplorationType.DETERMINISTIC, **options}


@cache
def made_here(case):
    """What a collector of one env gives; as if a worker had made it."""
    frames = frames_of(case)
    with Collector(case.env, case.policy(), frames_per_batch=frames, **options_for(frames)) as collector:
        return [batch.clone() for batch in collector]


def made_by(worker, case):
    batches = [batch.clone() for batch in made_here(case)]
    for batch in batches:
        batch[IDS] += worker << 47
    return batches


def require_equal(batches, others):
    found = [line for one, other in zip(batches, others, strict=True) for line in differences(one, other)]
    assert not found, "\n".join(found[:20])


@pytest.mark.parametrize("case", CASES)
def test_each_worker_gives_what_a_collector_here_gives(case, many):
    n_workers = 1 if case.name == "parallel" else 2  # each has processes of its own, which import TorchRL
    frames = n_workers * frames_of(case)
    sources = [case.env] * n_workers
    with many(sources, case.policy(), sync=True, frames_per_batch=frames, **options_for(frames)) as collector:
        batches = list(collector)
    for worker in range(n_workers):
        require_equal([batch[worker] for batch in batches], made_by(worker, case))


SCRIPTED = next(case for case in table() if case.name == "composed")
BUFFERS = {
    "lists": lambda: ReplayBuffer(storage=ListStorage(100), batch_size=8),
    "tensors": lambda: TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=8),
    "in order": lambda: ReplayBuffer(storage=LazyTensorStorage(100), sampler=SamplerWithoutReplacement(), batch_size=8),
    "slices": lambda: TensorDictReplayBuffer(
        storage=LazyTensorStorage(100),
        sampler=SliceSampler(traj_key=IDS, slice_len=3, strict_length=False),
        batch_size=9,
    ),
}


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("name", BUFFERS)
def test_torchrls_buffers_hold_what_the_workers_made(name, sync, many):
    buffer, frames = BUFFERS[name](), frames_of(SCRIPTED)
    options = options_for(2 * frames, frames_per_batch=2 * frames if sync else frames, replay_buffer=buffer)
    with many([SCRIPTED.env] * 2, SCRIPTED.policy(), sync=sync, **options) as collector:
        assert list(collector) == [None] * (N_BATCHES if sync else 2 * N_BATCHES)
        assert collector.stats()["frames"] == len(buffer) == 2 * N_BATCHES * frames
    held = buffer[:] if name != "lists" else torch.stack(list(buffer[:]))
    made = [torch.cat(made_by(worker, SCRIPTED), -1) for worker in range(2)]
    if sync:
        rounds = [one[at : at + frames] for at in range(0, N_BATCHES * frames, frames) for one in made]
        assert held[IDS].tolist() == torch.cat(rounds)[IDS].tolist()
    for worker, expected in enumerate(made):
        own = held[held[IDS] >> 47 == worker]
        n = min(len(own), len(expected))
        assert n >= frames or not sync
        require_equal([plain(own[:n], expected)], [expected[:n]])
    assert buffer.sample()["observation"].shape[-1] == 1


def plain(held, like):
    """Without what the buffer has added."""
    return held.select(*like.keys(True, True)).refine_names("time")
