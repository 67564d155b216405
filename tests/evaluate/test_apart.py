"""Evaluations on a thread apart: the numbers of those in the calling thread, and nothing that training notices."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from evaluation_toys import CoinEnv, FaultyEnv, evaluate_once
from tensordict.nn import set_interaction_type
from tensordict.nn.probabilistic import interaction_type
from torch import nn

from swath import Collector
from swath.evaluate.local import Slots
from swath.evaluate.request import EvalRequest
from swath.evaluate.stopping import StopRule
from swath.rollout.apart import apart
from swath.rollout.policies.exploration import ExplorationType
from swath.testing import CountingEnv, same_data

RANDOM, DETERMINISTIC = ExplorationType.RANDOM, ExplorationType.DETERMINISTIC


def drawing(observation):
    return torch.multinomial(torch.rand(7), len(observation), replacement=True)


class Dropping(nn.Module):
    """Drops features even in evaluation, as for uncertainty."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Linear(2, 7)

    def forward(self, observation):
        features = nn.functional.dropout(observation.float(), 0.5, training=True)
        return self.weights(features).argmax(-1)


POLICIES = {"a function": drawing, "a module with dropout": Dropping()}


def asked(exploration=RANDOM, seed=3):
    return EvalRequest(stop=StopRule(9), exploration_type=exploration, seed=seed)


def evaluated(policy, num_envs=3, request=None):
    result = evaluate_once(policy, CoinEnv, request or asked(), Slots(num_envs))
    return result.returns.tolist(), result.lengths.tolist()


def evaluated_apart(*args):
    with apart():
        return evaluated(*args)


def states():
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()


@pytest.mark.parametrize("exploration", [RANDOM, DETERMINISTIC])
@pytest.mark.parametrize("num_envs", [1, 4])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_the_numbers_are_those_of_an_evaluation_in_the_calling_thread(policy, num_envs, exploration):
    request, before = asked(exploration), states()
    expected = evaluated(policy, num_envs, request)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(evaluated_apart, policy, num_envs, request).result() == expected
    assert evaluated_apart(policy, num_envs, request) == expected
    assert states() == before
    assert evaluated(policy, num_envs, asked(exploration, seed=4)) != expected


def test_what_a_policy_draws_from_numpy_and_random_is_shared_with_the_other_threads():
    def act(observation):
        return torch.full((len(observation),), (np.random.randint(7) + random.randrange(7)) % 7)

    np.random.seed(1), random.seed(1)
    first = evaluated_apart(act)
    between = states()[1:]
    np.random.seed(1), random.seed(1)
    assert evaluated_apart(act) == first
    assert states()[1:] == between
    assert evaluated_apart(act) != first


class Watched(nn.Module):
    """Notes the interaction type of each call."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __deepcopy__(self, memo):
        return self

    def forward(self, tensordict):
        self.seen.add(interaction_type())
        return tensordict.set("action", torch.randint(3, tensordict.shape))


@pytest.mark.parametrize("fails", [False, True])
def test_a_collector_beside_evaluations_collects_what_it_would_alone(fails):
    def collected(seen, batches=6):
        policy, env = Watched(seen), lambda: CountingEnv(0)
        with Collector(env, policy, frames_per_batch=40, total_frames=40 * batches, seed=None) as collector:
            torch.manual_seed(5)
            return [batch.clone() for batch in collector]

    alone = collected(set())
    started, over, results, seen, by_training = threading.Barrier(2), threading.Event(), [], set(), set()

    def evaluate():
        started.wait()
        while True:
            if fails:
                with pytest.raises(KeyError), apart():
                    evaluate_once(Watched(seen), lambda: FaultyEnv(at_step=5), asked(DETERMINISTIC))
            results.append(evaluated_apart(Watched(seen), 1, asked(DETERMINISTIC)))
            if over.is_set():
                return

    with ThreadPoolExecutor(1) as other:
        evaluation = other.submit(evaluate)
        started.wait()
        try:
            beside = collected(by_training)
        finally:
            over.set()
        evaluation.result()
    for one, two in zip(alone, beside, strict=True):
        same_data(one, two)
    assert (by_training, seen) == ({RANDOM}, {DETERMINISTIC})
    assert interaction_type() is None
    assert all(result == results[0] for result in results)


def test_settings_of_the_process_are_left_alone():
    def settings():
        return torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads(), torch.is_grad_enabled()

    before = settings()
    with ThreadPoolExecutor(1) as other, set_interaction_type(RANDOM):
        other.submit(evaluated_apart, drawing).result()
        assert settings() == before == other.submit(settings).result()
