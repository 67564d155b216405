"""The collection contract for many workers: the laws of batches, in every place where they can live."""

from contextlib import nullcontext

import pytest
import torch
from counted_contract import CountedCollectionContract
from fleet_toys import EVERYWHERE

import ray_cluster


def steady(observation):
    return torch.ones(observation.shape[:-1], dtype=torch.int64)


class TestSync(CountedCollectionContract):
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


class TestAsync(CountedCollectionContract):
    n_envs = 2
    n_workers = 2
    sync = False
