"""Sets of rollout workers with real envs and policies, on Ray too; workers without a set on Ray."""

import os
import sys

import cloudpickle
import pytest
from rw_toys import SMALL, alike, cartpole, same

import ray_cluster
from swath.rollout_workers import (
    PPOTorchPolicy,
    RolloutWorker,
    WorkerSet,
    collect_metrics,
)

MADE = {"env_creator": cartpole, "default_policy_class": PPOTorchPolicy}


def build_set(n=2, backend="inline", **settings):
    config = {**SMALL, "num_envs_per_env_runner": 2, "seed": 7, **settings}
    return WorkerSet(**MADE, config=config, num_workers=n, backend=backend)


def test_custom_metrics_are_reported_one_by_one_where_the_config_says_so():
    note = {"on_episode_end": lambda *, episode, **_: episode.custom_metrics.update(n=1)}
    for keep in (False, True):
        config = {"callback_functions": note, "keep_per_episode_custom_metrics": keep}
        with build_set(n=0, rollout_fragment_length=100, **config) as workers:
            workers.sample()
            metrics = collect_metrics(workers)
        one_by_one = {"n": [1] * metrics["num_episodes"]}
        assert metrics["custom_metrics"] == (one_by_one if keep else {"n_min": 1, "n_mean": 1, "n_max": 1})


def test_auto_fragments_are_shared_among_as_many_workers_as_there_are():
    with build_set(1, rollout_fragment_length="auto", train_batch_size=24) as workers:
        assert workers.sample().count == 24
        workers.add_workers(2)
        assert workers.sample().count == workers.sample(min_env_steps=24).count == 24
        workers.remove_workers([1])
        assert workers.sample().count == 24
        assert workers.foreach_worker(lambda worker: worker.num_workers) == [2, 2, 2]


@pytest.fixture(scope="module")
def ray():
    """Ray, whose bare actors get what is defined in tests by value: they cannot import it."""
    up, module = ray_cluster.up(), sys.modules[cartpole.__module__]
    for pickler in (cloudpickle, up.cloudpickle):
        pickler.register_pickle_by_value(module)
    yield up
    for pickler in (cloudpickle, up.cloudpickle):
        pickler.unregister_pickle_by_value(module)


@pytest.mark.parametrize("where", ["process", "ray"])
def test_sets_of_one_seed_collect_the_same_as_inline(where, request):
    for fixture in ("ray", "lent_actors") if where == "ray" else ("fork_server",):
        request.getfixturevalue(fixture)
    backend = None if where == "ray" else where  # where Ray is up, it is the place
    with build_set() as inline, build_set(backend=backend) as other:
        for _ in range(3):
            batch = other.sample()
            assert same(inline.sample(), batch)
            batch["obs"][:] = 0
        on_ray = other.foreach_worker(lambda _: "RAY_JOB_ID" in os.environ, local_worker=False)
        assert on_ray == [where == "ray"] * 2


def test_plain_ray_actors_are_workers(ray):
    from ray.util.iter import from_actors

    actor = ray.remote(num_cpus=0)(RolloutWorker)
    actors = first, second = [actor.remote(config={**SMALL, "seed": seed}, **MADE) for seed in (1, 2)]
    batch, count = ray.get(first.sample_with_count.remote())
    assert (batch.count, count) == (10, 10)
    shards = from_actors(actors)
    assert [batch.count for batch in shards.gather_async().take(4)] == [10] * 4
    assert shards.for_each(lambda batch: batch.count).batch(2).gather_sync().take(2) == [[10, 10]] * 2
    reference = first.get_weights.remote()
    ray.get(second.set_weights.remote(reference, {"timestep": 5}, 7))
    wanted, got = ray.get([reference, second.get_weights.remote()])
    assert alike(got, wanted)
    state = second.apply.remote(lambda worker: (worker.policy_version, worker.get_global_vars()["timestep"]))
    assert ray.get(state) == (7, 5)
    with RolloutWorker(config={**SMALL, "seed": 3}, **MADE) as inline:
        inline.set_weights(ray.put(wanted))
        assert alike(inline.get_weights(), wanted)
