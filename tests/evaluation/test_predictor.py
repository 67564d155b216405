"""Objects with `predict`."""

import numpy as np
import pytest
import torch
from evaluation_toys import CoinEnv, evaluate_once, expected
from gymnasium import spaces

from swath.evaluation.acting import Predictor
from swath.evaluation.request import EvalRequest
from swath.rollout.hosts.base import ArraySpec
from swath.rollout.policies.calling import ExplorationType
from swath.rollout.spaces import action_leaves, observation_leaves


class Remembering:
    """Predicts from a step count that it keeps in its state, and notes how it was called."""

    def __init__(self):
        self.policy = torch.nn.Linear(1, 1).train()
        self.calls = []

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        self.calls.append((episode_start.tolist(), deterministic, self.policy.training))
        count = np.zeros(len(observation), dtype=int) if state is None else state
        count = np.where(episode_start, 0, count)
        action = (observation[:, 0] + count) % 7
        if not deterministic:
            action = (action + np.random.randint(7, size=len(action))) % 7
        return action, count + 1


def played(num_envs, model=None, exploration=ExplorationType.DETERMINISTIC, n=11):
    request = EvalRequest(num_trajectories=n, exploration_type=exploration)
    return evaluate_once(model or Remembering(), CoinEnv, request, num_envs)


@pytest.mark.parametrize("num_envs", [None, 1, 4])
def test_predict_gets_batches_its_own_state_and_the_starts_of_episodes(num_envs):
    model = Remembering()
    result = played(num_envs, model)
    assert result.returns.tolist() == [expected(seed)[0] for seed in result.seeds]
    starts = np.array([call[0] for call in model.calls])
    assert starts[0].all()
    assert starts.sum() == 11
    assert {call[1] for call in model.calls} == {True}


def test_its_mode_is_evaluation_meanwhile_and_put_back_afterwards():
    model = Remembering()
    model.policy.add_module("inner", torch.nn.Linear(1, 1).eval())
    played(2, model)
    assert {call[2] for call in model.calls} == {False}
    assert model.policy.training
    assert not model.policy.inner.training


def test_sampling_is_asked_for_row_by_row_with_the_noise_of_each_episode():
    model = Remembering()
    alone, beside = played(1, exploration=ExplorationType.RANDOM), played(4, model, ExplorationType.RANDOM)
    np.testing.assert_array_equal(alone.returns, beside.returns)
    assert {len(call[0]) for call in model.calls} == {1}
    assert {call[1] for call in model.calls} == {False}
    assert not np.array_equal(alone.returns, played(1).returns)


def spec_of(action_space, observation_space):
    leaves = observation_leaves(observation_space), action_leaves(action_space)
    return ArraySpec(2, (2,), *leaves, observation_space, action_space)


@pytest.mark.parametrize("action", [np.zeros(3), np.zeros((2, 1)), 0])
def test_actions_of_the_wrong_shape_are_refused_with_both_shapes(action):
    class Wrong:
        def predict(self, observation, state, episode_start, deterministic):
            return action, None

    predictor = Predictor(Wrong(), spec_of(spaces.Discrete(3), spaces.Box(0, 1)), deterministic=True)
    with pytest.raises(ValueError, match=r"predict returned actions of shape .* want \(2,\)"):
        predictor([np.zeros((2, 1))])


class Answering:
    def __init__(self, answer):
        self.answer = answer

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        return self.answer


@pytest.mark.parametrize("answer", [np.zeros(2, dtype=int), None, (np.zeros(2, dtype=int),), [0, None]], ids=str)
def test_what_predict_returns_beside_actions_and_state_is_refused(answer):
    with pytest.raises(TypeError, match=r"predict returned .*; it must return \(actions, state\)"):
        played(2, Answering(answer))
