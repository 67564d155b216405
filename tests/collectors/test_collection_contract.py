"""The collection contract, on `Collector` in this process: inline is the reference for all other places."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from counted_contract import CountedCollectionContract
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

from counting_vector import CountingVectorEnv
from swath.testing import CollectionContract, Counting, CountingEnv, RandomScript


class TestObservationSpaces(CountedCollectionContract):
    """One and several entries; each space is in the contract of hosts."""

    @pytest.fixture(params=["float64", "nested"])
    def counting(self, request):
        return Counting(observation=request.param)


class TestActionSpaces(CountedCollectionContract):
    @pytest.fixture(
        params=[
            spaces.Box(-1, 2, (2, 3), np.float64),
            spaces.Dict({"x": spaces.Tuple((spaces.Dict({"y": spaces.Discrete(5)}), spaces.MultiBinary(2)))}),
        ],
        ids=str,
    )
    def counting(self, request):
        return Counting(action_space=request.param)


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
    def mode(self, request):
        return request.param

    @pytest.fixture(params=["vector", "nested"])
    def counting(self, request):
        return Counting(observation=request.param)

    @pytest.fixture
    def make_env(self, counting, mode):
        return lambda: CountingVectorEnv(3, counting, autoreset_mode=mode, copy=False)


class TestSyncVectorEnv(TestVectorEnv):
    @pytest.fixture
    def make_env(self, counting, mode):
        fns = [lambda i=i: CountingEnv(i, counting) for i in range(3)]
        return lambda: SyncVectorEnv(fns, autoreset_mode=mode, copy=False)


class TestCartPole(CollectionContract):
    n_steps = 40

    @pytest.fixture
    def make_env(self):
        return lambda: gym.make("CartPole-v1", max_episode_steps=25)

    @pytest.fixture
    def policy(self):
        net = nn.Linear(4, 2)
        return lambda observation: torch.distributions.Categorical(logits=net(observation)).sample()


class TestFrozenLake(CollectionContract):
    n_steps = 40

    @pytest.fixture
    def make_env(self):
        return lambda: gym.make("FrozenLake-v1", max_episode_steps=6)


class TestNativeCartPole(CollectionContract):
    n_envs = None
    n_steps = 40
    by_hand = False

    @pytest.fixture
    def make_env(self):
        return lambda: CartPoleVectorEnv(3)
