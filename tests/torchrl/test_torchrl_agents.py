"""PettingZoo's parallel envs as they are, beside TorchRL's wrapper of them."""

import pytest

pytest.importorskip("pettingzoo")

from mpe2 import simple_tag_v3
from torchrl.envs import PettingZooWrapper

from swath import Collector

CYCLES = 5


def bare():
    return simple_tag_v3.parallel_env(max_cycles=CYCLES)


def wrapped():
    return PettingZooWrapper(bare(), use_mask=True, done_on_any=False)


@pytest.mark.parametrize("copies", [None, 2])
def test_a_batch_has_the_entries_of_torchrls_wrapper(copies):
    ours, theirs = (entries(make, copies) for make in (bare, wrapped))
    assert ours == theirs


def entries(make, copies):
    frames = 2 * CYCLES * (copies or 1)
    with Collector(make, frames_per_batch=frames, total_frames=frames, envs_per_worker=copies) as collector:
        batch = collector.next()
    leaves = batch.keys(include_nested=True, leaves_only=True)
    return {key: (batch[key].shape, batch[key].dtype) for key in leaves}
