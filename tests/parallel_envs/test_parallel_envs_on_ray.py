"""PettingZoo's parallel envs in actors of Ray."""

import pytest
import torch

import ray_cluster
from swath import Collector

pytest.importorskip("pettingzoo")

from herd import LENGTH, Herd

FRAMES = 2 * LENGTH


def first_batch(collector):
    try:
        collector.set_seed(7)
        return collector.next()
    finally:
        collector.shutdown()


def test_equal_seeds_give_equal_data_here_and_on_ray():
    options = {"frames_per_batch": FRAMES, "total_frames": FRAMES}
    here = first_batch(Collector(Herd, **options))
    there = first_batch(ray_cluster.collector([Herd], sync=True, **options)).reshape(FRAMES)
    for key in here.keys(include_nested=True, leaves_only=True):
        assert torch.equal(there[key], here[key]), key
