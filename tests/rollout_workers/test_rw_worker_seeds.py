"""Seeds: those that are pinned, those that are derived, and that no two are alike."""

import random
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from sampling_toys import LONG, counting_worker

from swath.rollout_workers import AlgorithmConfig, RolloutWorker
from swath.rollout_workers.policies.ppo import PPOTorchPolicy
from swath.rollout_workers.policy import RandomPolicy
from swath.rollout_workers.worker.process import Seeds
from swath.seeds import derive
from swath.testing.counting import Counting, Script
from swath.testing.faults import Fault


def test_the_first_worker_seeds_its_envs_with_the_root_and_those_after_it_once():
    worker, factory = counting_worker(Counting(script=Script((2,))), seed=1)
    with worker:
        assert worker.seed == 1
        assert all(env.seeds == [] for env in factory.made), "envs are first reset by the first sample"
        worker.sample()
        worker.sample()
        worker.sample(force_reset=True)
    assert [env.seeds[0] for env in factory.made] == [1, 2, 3]
    assert {seed for env in factory.made for seed in env.seeds[1:]} == {None}


def test_an_env_that_is_made_anew_gets_a_seed_of_its_own():
    worker, factory = counting_worker(LONG, {1: [Fault("raise", step=2)]}, seed=1, restart_failed_sub_environments=True)
    with worker:
        worker.sample()
    seeds = [env.seeds[0] for env in factory.made]
    assert len(seeds) == len(set(seeds)) == 4
    assert all(isinstance(seed, int) for seed in seeds)


def test_no_two_seeds_of_a_root_are_alike_over_roles_workers_envs_and_lives():
    seen: set[int] = set()
    for in_evaluation in (False, True):
        for worker in range(64):
            for life in range(8):
                seeds = Seeds(12345, worker, life, in_evaluation)
                found = seeds.first(64)
                assert all(0 <= seed < 2**31 for seed in found)
                assert not seen.intersection(found)
                seen.update(found)
    assert len(seen) == 2 * 64 * 8 * 64
    assert set(range(12345, 12345 + 64)) <= seen


def test_seeds_differ_in_as_many_lives_as_a_worker_may_have():
    lives = [Seeds(5, worker, life) for worker in (0, 1) for life in range(1001)]
    assert len({seed for life in lives for seed in [*life.first(3), life.renewed(0, 3, 1)]}) == len(lives) * 4
    assert len({life.own for life in lives}) == len(lives)


def test_another_life_has_other_seeds_and_other_ids():
    worker, factory = counting_worker(LONG, seed=1)
    with worker:
        first = worker.sample()
    with RolloutWorker(**{**worker.creation_args(), "recreated_worker": 1}) as other:
        second = other.sample()
    assert len({env.seeds[0] for env in factory.made}) == 6
    for name in ("eps_id", "unroll_id"):
        assert not set(first[name].tolist()) & set(second[name].tolist())


@pytest.mark.parametrize("policy", [RandomPolicy, PPOTorchPolicy])
def test_equal_seeds_give_equal_batches_and_the_process_draws_as_if_there_were_no_worker(policy: Any):
    def drawn() -> Any:
        return random.random(), np.random.random(), torch.rand(1).item()

    def batches() -> Any:
        config = AlgorithmConfig().debugging(seed=3).env_runners(num_envs_per_env_runner=2, rollout_fragment_length=20)
        config = config.training(model={"fcnet_hiddens": [8]})
        with RolloutWorker(
            env_creator=lambda _: gym.make("CartPole-v1"), default_policy_class=policy, config=config
        ) as worker:
            made = [worker.sample()]
            if policy is PPOTorchPolicy:
                worker.learn_on_batch(made[0])
            return [*made, worker.sample()]

    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    wanted = drawn()
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    one = batches()
    assert drawn() == wanted
    for mine, theirs in zip(one, batches(), strict=True):
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)


def test_workers_begin_with_equal_weights_and_explore_differently():
    def worker(index: int) -> RolloutWorker:
        config = AlgorithmConfig().debugging(seed=3).training(model={"fcnet_hiddens": [8]})
        return RolloutWorker(
            env_creator=lambda _: gym.make("CartPole-v1"),
            default_policy_class=PPOTorchPolicy,
            config=config,
            worker_index=index,
            num_workers=2,
        )

    with worker(1) as one, worker(2) as two:
        assert one.seed != two.seed
        for name, array in one.get_weights()["default_policy"].items():
            np.testing.assert_array_equal(array, two.get_weights()["default_policy"][name])
        assert one.sample()["actions"].tolist() != two.sample()["actions"].tolist()


def test_a_derived_seed_is_never_one_of_those_that_are_pinned():
    root = 15_674
    assert root <= derive(root, "env", 4) < root + 2**16, "a seed that would be one of them"
    found = Seeds(root, worker=1).first(4)
    assert not [seed for seed in found if root <= seed < root + 2**16]
    assert len(set(found)) == 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_what_a_seeded_worker_draws_on_a_gpu_is_its_own():
    torch.rand(1, device="cuda")
    before, drawn = torch.cuda.get_rng_state(), []
    config = AlgorithmConfig().debugging(seed=3).resources(num_gpus=1)
    for _ in range(2):
        with RolloutWorker(
            env_creator=lambda _: gym.make("CartPole-v1"), default_policy_class=PPOTorchPolicy, config=config
        ) as worker:
            drawn.append(worker.sample()["actions"].tolist())
        assert torch.equal(torch.cuda.get_rng_state(), before)
    assert drawn[0] == drawn[1]
