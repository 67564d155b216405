"""Seeds: the same data twice, whatever else the process draws; and nothing of the process's own is touched."""

import random

import numpy as np
import pytest
import torch
from collector_toys import WithValue, make_collector
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from torch import nn

from swath.seeds import derive
from swath.testing import Counting, CountingEnv, CountingEnvs, RandomScript, same_data

DRAWN = Counting(script=RandomScript())


def capture():
    """Return the states of the process's generators."""
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


class Noisy(nn.Module):
    """Draws from all three generators."""

    out_keys = ("action", "noise")

    def forward(self, observation):
        shape = observation.shape[:-1]
        noise = torch.randn(shape) + float(np.random.rand()) + random.random()
        return torch.randint(2, shape), noise


def drawn(collector, n=4):
    with collector:
        return torch.cat([collector.next() for _ in range(n)], -1)


@pytest.mark.parametrize("env", ["CartPole-v1", lambda: CartPoleVectorEnv(2), lambda: CountingEnv(0, DRAWN)])
def test_the_same_seed_gives_the_same_data_whatever_the_process_draws(env):
    first = drawn(make_collector(env, Noisy(), seed=7))
    torch.rand(3), np.random.rand(3), random.random()
    torch.manual_seed(99)
    same_data(first, drawn(make_collector(env, Noisy(), seed=7)))
    other = drawn(make_collector(env, Noisy(), seed=8))
    assert not torch.equal(first["action"], other["action"])


def test_a_seed_at_construction_is_one_set_afterwards():
    late = make_collector(CountingEnvs(DRAWN), Noisy(), envs_per_worker=2)
    assert late.set_seed(7) == derive(7, "next")
    late.env[0].mark = late.env[0].mark._replace(episode=1)
    with make_collector(CountingEnvs(DRAWN), Noisy(), envs_per_worker=2, seed=7) as early:
        assert torch.equal(drawn(late)["noise"], torch.cat([early.next() for _ in range(4)], -1)["noise"])


def test_with_a_seed_the_global_generators_are_left_alone():
    before = capture()
    with make_collector(CountingEnvs(DRAWN), Noisy(), envs_per_worker=2) as collector:  # calls the policy once
        collector.set_seed(1)
        collector.next()
        collector.reset()
        collector.next()
        after = capture()
    assert torch.equal(before[0], after[0])
    assert all(np.array_equal(state, other) for state, other in zip(before[1], after[1], strict=True))
    assert before[2] == after[2]


@pytest.mark.parametrize("policy", [None, WithValue()], ids=["random", "drawn"])
def test_without_a_seed_torchs_generator_decides(policy):
    with make_collector(policy=policy) as collector:
        torch.manual_seed(5)
        first = collector.next()["action"]
        torch.manual_seed(5)
        assert torch.equal(first, collector.next()["action"])
        assert not torch.equal(first, collector.next()["action"])


def test_without_a_seed_envs_keep_the_state_of_their_maker():
    def make():
        env = CountingEnv(0, DRAWN)
        env.reset(seed=11)
        return env

    with make_collector(make, frames_per_batch=40) as first, make_collector(make, frames_per_batch=40) as other:
        assert torch.equal(first.next()["next", "done"], other.next()["next", "done"])
        assert first.env.seeds[:2] == [11, None]
        assert set(first.env.seeds[2:]) <= {None}


def test_copies_of_one_instance_do_not_share_a_random_state():
    env = CountingEnv(0, Counting(script=RandomScript(longest=30)))
    env.reset(seed=1)
    with make_collector(env, envs_per_worker=3, frames_per_batch=240) as collector:
        assert collector.env[0] is env
        assert len({env.seeds[-1] for env in collector.env}) == 3
        done = collector.next()["next", "done"]
    assert not torch.equal(done[0], done[1])
    assert env.closed == 1


class Watched(nn.Linear):
    """Notes the mode it is called in."""

    def __init__(self):
        super().__init__(3, 3)
        self.seen = []

    def forward(self, observation):
        self.seen.append(self.training)
        return super().forward(observation).argmax(-1)


def test_the_policys_mode_is_the_users():
    policy = Watched()
    with make_collector(policy=policy) as collector:
        collector.next()
        policy.eval()
        collector.next()
    assert policy.seen == [True] * 6 + [False] * 5
    assert not policy.training
