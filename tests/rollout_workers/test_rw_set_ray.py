"""Sets whose workers are Ray actors, and workers without a set on Ray."""

import sys
from itertools import product

import cloudpickle
import gymnasium as gym
import pytest
from toy_rollout_worker import STEPS, Broken, Play, ToySet, ToyWorker, config, rows

import ray_cluster
from swath.rollout_workers import AlgorithmConfig, PPOTorchPolicy, RolloutWorker, WorkerSet


@pytest.fixture(scope="module")
def ray():
    """Ray, whose bare actors get what is defined in tests by value: they cannot import it."""
    up = ray_cluster.up()
    modules = [sys.modules[__name__], sys.modules[ToyWorker.__module__]]
    picklers = [cloudpickle, up.cloudpickle]
    for pickler, module in product(picklers, modules):
        pickler.register_pickle_by_value(module)
    yield up
    for pickler, module in product(picklers, modules):
        pickler.unregister_pickle_by_value(module)


@pytest.fixture(scope="module")
def workers(ray):
    with ray_cluster.lending(), ToySet(env_creator=Play(), config=config(), num_workers=2) as made:
        yield made


def index(worker):
    return worker.worker_index


def raise_in_2(worker):
    if worker.worker_index == 2:
        raise Broken("in worker 2")


def cartpole(_):
    return gym.make("CartPole-v1")


def same(one, other):
    mine, others = one["default_policy"], other["default_policy"]
    return mine.keys() == others.keys() and all((mine[name] == others[name]).all() for name in mine)


def test_where_ray_is_up_it_is_the_place_and_a_set_there_is_like_any_other(workers):
    assert workers.foreach_worker(index, with_ids=True) == [(0, 0), (1, 1), (2, 2)]
    with pytest.raises(Broken, match="in worker 2"):
        workers.foreach_worker(raise_in_2)
    before = workers.sample()
    version = workers.sync_weights(timeout_seconds=60.0)
    batch = workers.sample()
    assert [t for _, _, t in rows(batch)] == [t + STEPS for _, _, t in rows(before)]
    assert set(batch["policy_version"]) == {version}
    batch["obs"][:] = 0
    workers.foreach_worker_async(index, tag="x")
    replies = workers.fetch_ready_async_reqs(tags="x", timeout_seconds=None)
    assert [(reply.worker, reply.result) for reply in replies] == [(1, 1), (2, 2)]


@pytest.mark.usefixtures("lent_actors")
def test_sets_of_one_seed_collect_the_same_inline_and_on_ray(ray):
    seeded = AlgorithmConfig().debugging(seed=3).env_runners(rollout_fragment_length=20, num_envs_per_env_runner=2)
    batches = []
    for backend in ("inline", "ray"):
        options = {"env_creator": cartpole, "default_policy_class": PPOTorchPolicy, "config": seeded}
        with WorkerSet(**options, num_workers=2, backend=backend) as workers:
            batches.append([workers.sample() for _ in range(2)])
    for here, there in zip(*batches, strict=True):
        assert here.keys() == there.keys()
        assert all((here[name] == there[name]).all() for name in here)


def test_weights_go_from_one_plain_ray_actor_to_another_by_reference(ray):
    actor = ray.remote(num_cpus=0)(RolloutWorker)
    made = {"env_creator": cartpole, "default_policy_class": PPOTorchPolicy}
    first, second = (actor.remote(config=AlgorithmConfig().debugging(seed=seed), **made) for seed in (1, 2))
    reference = first.get_weights.remote()
    ray.get(second.set_weights.remote(reference, {"timestep": 5}, 7))
    wanted, got = ray.get([reference, second.get_weights.remote()])
    assert same(got, wanted)
    known = second.apply.remote(lambda worker: (worker.policy_version, worker.get_global_vars()["timestep"]))
    assert ray.get(known) == (7, 5)
    with RolloutWorker(config=AlgorithmConfig().debugging(seed=3), **made) as here:
        assert not same(here.get_weights(), wanted)
        here.set_weights(ray.put(wanted))
        assert same(here.get_weights(), wanted)
