"""The evaluator contract in every place where evaluations run, and in an env of floats."""

from functools import partial

import pytest
import torch

from swath.testing import EvaluatorContract


class TestInAThread(EvaluatorContract):
    pass


@pytest.mark.usefixtures("warm_processes")
class TestInProcesses(EvaluatorContract):
    backend = "process"


@pytest.mark.usefixtures("lent_actors")
class TestOnRay(EvaluatorContract):
    backend = "ray"
    options = {"num_gpus": 0, "ray_kwargs": {"num_cpus": 0}}
    layouts = ((7, 3),)


class Leaning(torch.nn.Module):
    """Deterministic, computed row by row."""

    def __init__(self, weight=1.0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([0.0, weight, 1.0, 1.0]))

    def forward(self, observation):
        return ((observation * self.weight).sum(-1) > 0).long()


class Tossing(torch.nn.Module):
    def forward(self, observation):
        return torch.randint(0, 2, observation.shape[:-1])


class TestCartPole(EvaluatorContract):
    layouts = ((1, 1), (8, 1))
    num_trajectories = 9
    max_steps = 60

    @pytest.fixture
    def make_env(self):
        return "CartPole-v1"

    @pytest.fixture
    def make_policy(self):
        return partial(Leaning, -1.0)

    @pytest.fixture
    def other_weights(self):
        return Leaning()

    @pytest.fixture
    def make_noisy_policy(self):
        return Tossing
