"""Sets of rollout workers with real envs and policies: what a set is for, end to end."""

import gymnasium as gym
import numpy as np
import pytest
from rw_toys import cartpole, same

from swath import WorkerSet
from swath.rollout_workers import (
    AlgorithmConfig,
    DefaultCallbacks,
    PPOTorchPolicy,
    RandomPolicy,
    RolloutWorker,
    collect_metrics,
    make_multi_agent,
)


def made(n=2, backend="inline", policy=PPOTorchPolicy, creator=cartpole, local_worker=True, **others):
    own = AlgorithmConfig().env_runners(rollout_fragment_length=5, num_envs_per_env_runner=2).debugging(seed=7)
    own.fault_tolerance(delay_between_env_runner_restarts_s=0.0).update_from_dict(others)
    options = {"env_creator": creator, "default_policy_class": policy, "config": own}
    return WorkerSet(**options, num_workers=n, backend=backend, local_worker=local_worker)


@pytest.mark.parametrize("local_worker", [True, False], ids=["with a local worker", "without"])
def test_a_policy_object_acts_in_all_workers_on_observations_that_are_preprocessed(local_worker):
    lakes = lambda _: make_multi_agent(lambda _: gym.make("FrozenLake-v1"))({"num_agents": 2})
    with made(1, creator=lakes, local_worker=local_worker) as workers:
        one = RolloutWorker(env_creator=lakes, default_policy_class=PPOTorchPolicy).get_policy()
        state = one.get_state()
        state["weights"] = {name: np.full_like(weight, 0.25) for name, weight in state["weights"].items()}
        told = {"policy_state": state, "config": {"gamma": 0.5}, "policy_mapping_fn": lambda *_, **__: "twin"}
        workers.add_policy("twin", policy=one, **told)
        assert workers.sample()["twin"]["obs"].shape[1:] == (16,)
        weights = workers.foreach_worker(lambda worker: worker.get_weights("twin")["twin"])
        assert all((weight == 0.25).all() for each in weights for weight in each.values())
        config = lambda worker: worker.get_policy("twin").config
        (own,) = workers.foreach_worker(config, local_worker=False)
        assert (own["gamma"], own["worker_index"], own["__policy_id"]) == (0.5, 1, "twin")


def test_sets_of_one_seed_collect_the_same_inline_and_in_processes(warm_processes):
    with made() as here, made(backend="process") as there:
        for _ in range(3):
            assert same(here.sample(), there.sample())


class Noting(DefaultCallbacks):
    def on_episode_end(self, *, episode, **kwargs):
        episode.custom_metrics["one"] = 1


def test_custom_metrics_are_told_one_by_one_where_the_config_says_so():
    for keep in (False, True):
        config = {"callbacks_class": Noting, "keep_per_episode_custom_metrics": keep}
        with made(n=0, rollout_fragment_length=100, **config) as workers:
            workers.sample()
            told = collect_metrics(workers)
        one_by_one = {"one": [1] * told["num_episodes"]}
        assert told["custom_metrics"] == (one_by_one if keep else {"one_min": 1, "one_mean": 1, "one_max": 1})


def test_auto_fragments_are_shared_among_as_many_workers_as_there_are():
    with made(1, policy=RandomPolicy, rollout_fragment_length="auto", train_batch_size=24) as workers:
        assert workers.sample().count == 24
        workers.add_workers(2)
        assert workers.sample().count == workers.sample(min_env_steps=24).count == 24
        workers.remove_workers([1])
        assert workers.sample().count == 24
        assert workers.foreach_worker(lambda worker: worker.num_workers) == [2, 2, 2]
