"""A small task that the defaults must learn, through a collector, from the first frame to the last."""

from dataclasses import replace

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from swath import Collector, ExplorationType
from swath.learn import PPO, default_config, make_policy


class Contrast(gymnasium.Env):
    """One step: act as the observation says; the best reward is 1, an untrained policy's far below."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Box(0, 3, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._state = 1000 + 50 * self.np_random.normal(size=4).astype(np.float32)  # badly scaled, as life is
        return self._state, {}

    def step(self, action):
        return self._state, aim((self._state - 1000) / 50, action), True, False, {}


def aim(state, action):
    """Targets between 0.5 and 2.5, of the allowed 0 to 3."""
    return float(1 - np.sum((action - (1.5 + np.tanh(state[:2]))) ** 2))


def mean_reward(policy):
    settings = {"envs_per_worker": 10, "seed": 7, "exploration_type": ExplorationType.DETERMINISTIC}
    with Collector(Contrast, policy, frames_per_batch=500, **settings) as judge:
        return judge.next()["next", "reward"].mean().item()


def test_the_defaults_learn_to_act_on_what_is_observed():
    torch.manual_seed(0)
    policy = make_policy(Contrast.observation_space, Contrast.action_space)
    config = default_config(Contrast.observation_space, Contrast.action_space)
    learner = PPO(policy, replace(config, total_frames=6_000, minibatch_size=64))

    assert mean_reward(policy) < 0.45
    with Collector(Contrast, policy, frames_per_batch=500, total_frames=6_000, envs_per_worker=10, seed=0) as collector:
        for batch in collector:
            learner.update(batch)
            collector.update_policy_weights_()
    assert mean_reward(policy) > 0.75
