"""Seeds: those that are pinned, those that are derived, and that no two are alike."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from rw_toys import LONG, SMALL, alike, cartpole, counting_worker, mock

from swath.rollout_workers import AlgorithmConfig, RolloutWorker
from swath.rollout_workers.policies.ppo import PPOTorchPolicy
from swath.rollout_workers.policy import RandomPolicy
from swath.rollout_workers.worker.worker import Seeds
from swath.seeds import derive
from swath.testing.counting import Counting, Script


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


def test_no_two_seeds_of_a_root_are_alike_over_roles_workers_envs_lives_and_envs_made_anew():
    found = [
        seed
        for in_evaluation in (False, True)
        for worker in range(64)
        for life in range(8)
        for seed in Seeds(12345, worker, life, in_evaluation).first(64)
    ]
    found += [Seeds(12345).renewed(env, 64, time) for env in range(64) for time in range(1, 200)]
    lives = [Seeds(5, worker, life).own for worker in (0, 1) for life in range(1001)]
    assert (len(set(found)), len(set(lives))) == (len(found), len(lives))
    assert all(0 <= seed < 2**31 for seed in found)
    assert found[:64] == [*range(12345, 12345 + 64)]


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
        config = {**SMALL, "seed": 3, "num_envs_per_env_runner": 2}
        with mock(env_creator=cartpole, default_policy_class=policy, config=config) as worker:
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
    made = {"env_creator": cartpole, "default_policy_class": PPOTorchPolicy, "config": {**SMALL, "seed": 3}}
    with mock(worker_index=1, **made) as one, mock(worker_index=2, **made) as two:
        assert one.seed != two.seed
        assert alike(one.get_weights(), two.get_weights())
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
        with mock(env_creator=cartpole, default_policy_class=PPOTorchPolicy, config=config) as worker:
            drawn.append(worker.sample()["actions"].tolist())
        assert torch.equal(torch.cuda.get_rng_state(), before)
    assert drawn[0] == drawn[1]
