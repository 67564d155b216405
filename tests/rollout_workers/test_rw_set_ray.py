"""Sets whose workers are Ray actors, and workers without a set on Ray; `test_rw_must_not_happen` has more of sets."""

import os
import sys

import cloudpickle
import numpy as np
import pytest
from rw_toys import SMALL, alike, cartpole

import ray_cluster
from swath.rollout_workers import PPOTorchPolicy, RolloutWorker, WorkerSet

MADE = {"env_creator": cartpole, "default_policy_class": PPOTorchPolicy}


@pytest.fixture(scope="module")
def ray():
    """Ray, whose bare actors get what is defined in tests by value: they cannot import it."""
    up, module = ray_cluster.up(), sys.modules[cartpole.__module__]
    for pickler in (cloudpickle, up.cloudpickle):
        pickler.register_pickle_by_value(module)
    yield up
    for pickler in (cloudpickle, up.cloudpickle):
        pickler.unregister_pickle_by_value(module)


@pytest.mark.usefixtures("lent_actors")
def test_where_ray_is_up_it_is_the_place_and_sets_of_one_seed_collect_the_same_as_inline(ray):
    batches = []
    for backend in ("inline", None):
        with WorkerSet(**MADE, config={**SMALL, "seed": 3}, num_workers=2, backend=backend) as workers:
            batches.append([workers.sample() for _ in range(2)])
            of_ray = workers.foreach_worker(lambda _: "RAY_JOB_ID" in os.environ, local_worker=False)
            assert of_ray == [backend is None] * 2
    for here, there in zip(*batches, strict=True):
        assert here.keys() == there.keys()
        assert all(np.array_equal(here[name], there[name]) for name in here)
        there["obs"][:] = 0


def test_plain_ray_actors_are_workers(ray):
    from ray.util.iter import from_actors

    actor = ray.remote(num_cpus=0)(RolloutWorker)
    actors = first, second = [actor.remote(config={**SMALL, "seed": seed}, **MADE) for seed in (1, 2)]
    batch, count = ray.get(first.sample_with_count.remote())
    assert (batch.count, count) == (10, 10)
    shards = from_actors(actors)
    assert [one.count for one in shards.gather_async().take(4)] == [10] * 4
    assert shards.for_each(lambda one: one.count).batch(2).gather_sync().take(2) == [[10, 10]] * 2
    reference = first.get_weights.remote()
    ray.get(second.set_weights.remote(reference, {"timestep": 5}, 7))
    wanted, got = ray.get([reference, second.get_weights.remote()])
    assert alike(got, wanted)
    known = second.apply.remote(lambda worker: (worker.policy_version, worker.get_global_vars()["timestep"]))
    assert ray.get(known) == (7, 5)
    with RolloutWorker(config={**SMALL, "seed": 3}, **MADE) as here:
        here.set_weights(ray.put(wanted))
        assert alike(here.get_weights(), wanted)
