"""Small tasks that the defaults must learn, through a collector, from the first frame to the last."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from swath import Collector, ExplorationType
from swath.learn import PPO, default_config, make_policy


class Contrast(gymnasium.Env):
    """One step: act as the observation says; the best reward is 1, an untrained policy's far below."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def __init__(self, action_space, reward):
        self.action_space, self._reward = action_space, reward

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._state = 1000 + 50 * self.np_random.normal(size=4).astype(np.float32)  # badly scaled, as life is
        return self._state, {}

    def step(self, action):
        return self._state, self._reward((self._state - 1000) / 50, action), True, False, {}


def signs(state, action):
    return float(np.mean(action == (state[:2] > 0)))


def aim(state, action):
    """Targets between 0.5 and 2.5, of the allowed 0 to 3."""
    return float(1 - np.sum((action - (1.5 + np.tanh(state[:2]))) ** 2))


TASKS = {
    "MultiDiscrete": (spaces.MultiDiscrete([2, 2]), signs, 0.5, 0.9),
    "Box": (spaces.Box(0, 3, (2,), np.float32), aim, 0.3, 0.75),
}


def mean_reward(policy, source):
    greedy = ExplorationType.DETERMINISTIC
    with Collector(source, policy, frames_per_batch=500, envs_per_worker=10, seed=7, exploration_type=greedy) as judge:
        return judge.next()["next", "reward"].mean().item()


@pytest.mark.parametrize("task", TASKS)
def test_the_defaults_learn_to_act_on_what_is_observed(task):
    action_space, reward, untrained, trained = TASKS[task]
    torch.manual_seed(0)
    policy = make_policy(Contrast.observation_space, action_space)
    config = default_config(Contrast.observation_space, action_space)
    learner = PPO(policy, replace(config, total_frames=6_000, minibatch_size=64))

    def source():
        return Contrast(action_space, reward)

    assert mean_reward(policy, source) < untrained + 0.15
    with Collector(source, policy, frames_per_batch=500, total_frames=6_000, envs_per_worker=10, seed=0) as collector:
        for batch in collector:
            learner.update(batch)
            collector.update_policy_weights_()
    assert mean_reward(policy, source) > trained
