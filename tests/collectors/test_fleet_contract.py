"""The collection contract for many workers, in every place where they can live."""

from contextlib import nullcontext

import gymnasium as gym
import pytest
import torch
from counted_contract import CountedCollectionContract
from fleet_toys import EVERYWHERE
from torch import nn

import ray_cluster
from swath.testing import CollectionContract, Counting, RandomScript


class Somewhere:
    """Threads share their generators: there a policy acts that draws no numbers."""

    n_envs = 2
    n_workers = 2

    @pytest.fixture(autouse=True, params=EVERYWHERE)
    def place(self, request, fork_server):
        self.backend = request.param
        with ray_cluster.lending() if self.backend == "ray" else nullcontext():
            yield

    @pytest.fixture
    def policy(self):
        return steady if self.backend == "thread" else None


def steady(observation):
    return torch.ones(observation.shape[:-1], dtype=torch.int64)


class TestSync(Somewhere, CountedCollectionContract):
    pass


class TestAsync(Somewhere, CountedCollectionContract):
    sync = False


class TestOneWorkerAhead(CountedCollectionContract):
    n_envs = 2
    n_workers = 1
    sync = False


class TestThreeBareEnvsWithSeededEpisodes(CountedCollectionContract):
    n_envs = None
    n_workers = 3

    @pytest.fixture
    def counting(self):
        return Counting(script=RandomScript())


class TestCartPole(Somewhere, CollectionContract):
    n_steps = 40

    @pytest.fixture
    def make_env(self):
        return lambda: gym.make("CartPole-v1", max_episode_steps=25)

    @pytest.fixture
    def policy(self):
        net = nn.Linear(4, 2)
        if self.backend == "thread":
            return lambda observation: net(observation).argmax(-1)
        return lambda observation: torch.distributions.Categorical(logits=net(observation)).sample()
