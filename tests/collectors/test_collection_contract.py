"""The collection contract, in this process, which is the reference, and in every place where workers can live.

What envs there are (spaces, kinds of vector envs) is in the contract of hosts.
"""

from contextlib import nullcontext

import gymnasium as gym
import pytest
import torch
from collector_toys import EVERYWHERE
from gymnasium.vector import AutoresetMode
from torch import nn

import ray_cluster
from counting_vector import CountingVectorEnv
from swath.testing import CollectionContract, Counting, CountingEnv, CountingEnvs, RandomScript, check_counted, marks_of
from swath.testing.checks import valid


class CountedCollectionContract(CollectionContract):
    """Counting envs show that no frame is lost, repeated or mixed; `counting` has their options."""

    @pytest.fixture
    def counting(self):
        return Counting()

    @pytest.fixture
    def make_env(self, counting):
        return Rounds(counting, self.n_envs or 1)

    @pytest.fixture
    def sources(self, make_env, counting):
        """Return env sources with consecutive numbers over all workers."""
        if self.n_workers is None:
            return [make_env]
        n_envs = self.n_envs or 1
        return [Rounds(counting, n_envs, worker * n_envs) for worker in range(self.n_workers)]

    @pytest.fixture
    def env_by_hand(self, counting):
        return lambda i: CountingEnv(i, counting)

    def test_no_frame_is_lost_repeated_or_mixed(self, collected, counting):
        for td in collected:
            check_counted(td, counting)
        envs = [int(marks_of(row, counting)[valid(row)][0, 0]) for td in collected for row in td.unsqueeze(1)]
        assert len(set(envs)) == len(envs), f"two rows are of the same env: {envs}"


class Rounds:
    """Builds envs `first` to `first` + n − 1 for each collector."""

    def __init__(self, counting, n_envs, first=0):
        self._counting, self._n_envs, self._first = counting, n_envs, first
        self._envs = CountingEnvs(counting, first=first)

    def __call__(self):
        if len(self._envs.made) == self._n_envs:
            self._envs = CountingEnvs(self._counting, first=self._first)
        return self._envs()


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


@pytest.mark.usefixtures("fork_server")
class TestEnvProcesses(TestCartPole):
    env_processes = 2


# ---- many workers


def steady(observation):
    return torch.ones(observation.shape[:-1], dtype=torch.int64)


class TestSync(CountedCollectionContract):
    """In threads, which share generators, a policy acts that draws no numbers."""

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


class TestAsync(CountedCollectionContract):
    n_envs = 2
    n_workers = 2
    sync = False
