"""The collection contract, on `Collector` in this process: inline is the reference for all other places.

What envs there are (spaces, kinds of vector envs) is in the contract of hosts.
"""

import gymnasium as gym
import pytest
import torch
from counted_contract import CountedCollectionContract
from gymnasium.vector import AutoresetMode
from torch import nn

from counting_vector import CountingVectorEnv
from swath.testing import CollectionContract, Counting, RandomScript


class TestEpisodesDrawnFromTheSeed(CountedCollectionContract):
    @pytest.fixture
    def counting(self):
        return Counting(script=RandomScript())


class TestEnvsThatReuseTheirArrays(CountedCollectionContract):
    @pytest.fixture
    def counting(self):
        return Counting(observation="nested", in_place=True)


class TestOneEnvWithoutDimension(CountedCollectionContract):
    n_envs = None


class TestOneEnvWithDimension(CountedCollectionContract):
    n_envs = 1


class TestVectorEnv(CountedCollectionContract):
    n_envs = None
    by_hand = False

    @pytest.fixture(params=list(AutoresetMode), ids=lambda mode: mode.name)
    def make_env(self, counting, request):
        return lambda: CountingVectorEnv(3, counting, autoreset_mode=request.param, copy=False)


class TestCartPole(CollectionContract):
    n_steps = 40

    @pytest.fixture
    def make_env(self):
        return lambda: gym.make("CartPole-v1", max_episode_steps=25)

    @pytest.fixture
    def policy(self):
        net = nn.Linear(4, 2)
        return lambda observation: torch.distributions.Categorical(logits=net(observation)).sample()
