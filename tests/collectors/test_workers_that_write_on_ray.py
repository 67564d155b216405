"""Workers on Ray that write for themselves."""

import os

import pytest
import torch
from fleet_toys import AT_ONCE, IDS, numbered
from writing_toys import FileBuffer

from swath import RayCollector

pytestmark = pytest.mark.usefixtures("lent_actors")


def on_ray(sources=None, policy=None, **options):
    options = {"envs_per_worker": 2, "frames_per_batch": 20, "sync": True, "restarts": AT_ONCE, **options}
    return RayCollector(numbered() if sources is None else sources, policy, **options)


def signed(td):
    return td.set("pid", torch.full(td.shape, os.getpid()))


def test_a_whole_collector_in_an_actor_writes_what_its_processes_make(tmp_path):
    buffer = FileBuffer(tmp_path)
    options = {"collector_class": "sync", "num_workers_per_collector": 2, "num_collectors": 1, "total_frames": 60}
    with on_ray(numbered()[0], replay_buffer=buffer, postproc=signed, **options) as collector:
        assert list(collector) == [None] * 3
        assert collector.stats()["frames"] == 60
    assert [td.shape for td in buffer.written] == [(2, 2, 5)] * 3
    assert {worker for td in buffer.written for worker in (td[IDS] >> 47).unique().tolist()} == {0, 1}
    assert {entry.pid for entry in buffer.entries} == {int(td["pid"].max()) for td in buffer.written} != {os.getpid()}
