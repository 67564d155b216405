"""An evaluator and a training in one process do not change each other."""

import random
import threading

import numpy as np
import pytest
import torch
from tensordict.nn import InteractionType

from swath import Collector
from swath.evaluators import Evaluator

pytestmark = pytest.mark.usefixtures("fork_server")

SAMPLED = {"exploration_type": "random", "num_trajectories": 4, "max_steps": 40}


class Sampler(torch.nn.Module):
    """Samples in each call unless it must be deterministic, and notes its mode."""

    def __init__(self, calls=None):
        super().__init__()
        self.net = torch.nn.Linear(4, 2)
        self.calls = calls

    def forward(self, observation, exploration_type=None):
        if self.calls is not None:
            self.calls.append((threading.current_thread().name, self.training))
        logits = self.net(observation)
        if exploration_type is InteractionType.DETERMINISTIC:
            return logits.argmax(-1)
        return torch.distributions.Categorical(logits=logits).sample()

    def __deepcopy__(self, memo):
        twin = Sampler(self.calls)
        twin.load_state_dict(self.state_dict())
        return twin


def collected(between=lambda: None):
    """Batches of a collector that draws from the process's own generators."""
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(3)
    policy, batches = Sampler(), []
    with Collector("CartPole-v1", policy, frames_per_batch=64, total_frames=640) as collector:
        collector.set_seed(1)
        for batch in collector:
            batches.append(batch.clone())
            between()
    return batches, torch.rand(3), np.random.rand(3), random.random()


@pytest.mark.parametrize(
    "options",
    [
        {"policy": Sampler(), "num_trajectories": 4, "max_steps": 40},
        {"policy_factory": Sampler, "backend": "process", **SAMPLED},
    ],
    ids=["greedy in a thread", "sampled in a process"],
)
def test_training_data_are_the_same_to_the_last_bit_with_and_without_an_evaluator(options):
    batches, *draws = collected()
    with Evaluator("CartPole-v1", busy_policy="latest", **options) as ev:
        evaluated, *evaluated_draws = collected(ev.trigger_eval)
        ev.wait()
        assert ev.stats()["completed"] > 0
    for first, second in zip(batches, evaluated, strict=True):
        assert set(first.keys(True, True)) == set(second.keys(True, True))
        for key in first.keys(True, True):
            assert torch.equal(first[key], second[key]), key
    assert torch.equal(draws[0], evaluated_draws[0])
    assert np.array_equal(draws[1], evaluated_draws[1])
    assert draws[2] == evaluated_draws[2]


def test_training_mode_stays_on_its_side():
    calls = []
    policy = Sampler(calls)
    with Evaluator("CartPole-v1", policy, **SAMPLED) as ev:
        ev.trigger_eval()
        while ev.pending:
            policy(torch.zeros(4))
        ev.poll()
    main = threading.current_thread().name
    assert {training for name, training in calls if name == main} == {True}
    assert {training for name, training in calls if name != main} == {False}
