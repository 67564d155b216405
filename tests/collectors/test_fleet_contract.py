"""The collection contract for many workers, in every place where they can live."""

from contextlib import nullcontext

import gymnasium as gym
import pytest
import torch
from collector_toys import WithValue
from counted_contract import CountedCollectionContract
from fleet_toys import EVERYWHERE
from torch import nn

import ray_cluster
from swath import Collector, MultiSyncCollector
from swath.testing import CollectionContract, Counting, CountingEnvs, Drawn, same_data


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


class TestThreeWorkers(CountedCollectionContract):
    n_envs = 2
    n_workers = 3


class TestOneWorker(CountedCollectionContract):
    n_envs = 2
    n_workers = 1


class TestThreeWorkersOutOfStep(TestThreeWorkers):
    sync = False


class TestOneWorkerAhead(TestOneWorker):
    sync = False


class TestSeededEpisodesInBareEnvs(Somewhere, CountedCollectionContract):
    n_envs = None

    @pytest.fixture
    def counting(self):
        return Counting(script=Drawn())


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


@pytest.mark.parametrize("policy", [None, WithValue()], ids=["random", "module"])
def test_one_worker_elsewhere_gives_the_data_of_a_collector_here(policy, fork_server):
    options = {"frames_per_batch": 10, "total_frames": 50, "envs_per_worker": 2, "seed": 3}
    with Collector(CountingEnvs(), policy, **options) as here:
        batches = list(here)
    for place in ("inline", "process"):
        with MultiSyncCollector([CountingEnvs()], policy, backend=place, **options) as elsewhere:
            for one, other in zip(elsewhere, batches, strict=True):
                same_data(one[0], other)
