"""Collectors that are built, drawn from and shut down, again and again, leave nothing behind."""

import gc
import threading
from queue import SimpleQueue

import pytest
from fleet_toys import KINDS, InThread, Level, drawn, fleet, numbered

import ray_cluster
from swath import RayCollector
from swath.collectors import multi
from traces import left, require_no_more_than

LARGE = 4_000
"""Frames of a batch whose arrays travel in blocks of shared memory."""


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize("place", ["thread", "process"])
def test_cycles_leave_no_process_thread_descriptor_or_memory(place):
    kinds = [*KINDS] * 2
    before = left()
    for kind in kinds:
        with fleet(kind, policy=Level(), backend=place, frames_per_batch=LARGE) as collector:
            drawn(collector, 1)
            collector.update_policy_weights_()
            drawn(collector, 1)
            assert left() != before
    require_no_more_than(before)


def test_cycles_on_ray_leave_no_actor_and_no_thread():
    ray = ray_cluster.up()
    before = {*threading.enumerate()}
    for sync in (True, False):
        with RayCollector(numbered(), frames_per_batch=LARGE, envs_per_worker=2, sync=sync) as collector:
            drawn(collector, 2)
            actors = collector.remote_collectors
        assert len(actors) == 2
        for actor in actors:
            with pytest.raises(ray.exceptions.ActorDiedError):
                ray.get(actor.stats.remote(), timeout=60)
    assert {*threading.enumerate()} <= before


def test_a_forgotten_collector_is_ended_where_one_may_wait_whichever_thread_finds_it(monkeypatch):
    """Garbage is also found by the thread that brings the answers of workers."""
    end, ends = multi.end_quietly, SimpleQueue()

    def noted(*left):
        end(*left)
        ends.put(threading.current_thread())

    def forget():
        cycle = [fleet(backend="inline")]
        cycle.append(cycle)

    monkeypatch.setattr(multi, "end_quietly", noted)
    gc.collect()
    gc.disable()
    try:
        for find in (lambda: InThread(gc.collect).join()._thread, lambda: gc.collect() and threading.main_thread()):
            forget()
            finder = find()
            assert ends.get(timeout=60) not in (finder, threading.main_thread())
    finally:
        gc.enable()
