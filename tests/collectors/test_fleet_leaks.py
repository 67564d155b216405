"""Collectors that are built, drawn from and shut down, again and again, leave nothing behind."""

import threading

import pytest
from fleet_toys import KINDS, Level, drawn, fleet, numbered

import ray_cluster
from swath import RayCollector
from traces import left, require_no_more_than

LARGE = 4_000
"""Frames of a batch whose arrays travel in blocks of shared memory."""


@pytest.mark.usefixtures("fork_server")
def test_cycles_leave_no_process_thread_descriptor_or_memory():
    before = left()
    for kind in [*KINDS] * 2:
        with fleet(kind, policy=Level(), frames_per_batch=LARGE) as collector:
            drawn(collector, 1)
            collector.update_policy_weights_()
            drawn(collector, 1)
            assert left() != before
    require_no_more_than(before)


def test_a_cycle_on_ray_leaves_no_actor_and_no_thread():
    ray = ray_cluster.up()
    before = {*threading.enumerate()}
    with RayCollector(numbered(), frames_per_batch=LARGE, envs_per_worker=2, sync=True) as collector:
        drawn(collector, 2)
        actors = collector.remote_collectors
    assert len(actors) == 2
    for actor in actors:
        with pytest.raises(ray.exceptions.ActorDiedError):
            ray.get(actor.stats.remote(), timeout=60)
    assert {*threading.enumerate()} <= before
