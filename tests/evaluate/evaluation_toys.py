"""Small envs and policies whose returns and lengths follow from seeds in plain integers."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from swath.evaluate.local import LocalEvaluation

SHORT, LONG = 3, 41


class CoinEnv(gym.Env):
    """Episodes of 3 or 41 steps with equal chance, as the seed falls; observes (token, step).

    Rewards are integers that depend on token and action, so that returns tell which episode and which policy it was.
    """

    observation_space = spaces.Box(0, 10**6, (2,), np.int64)
    action_space = spaces.Discrete(7)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.steps, self.resets, self.closed = 0, [], False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets.append(seed)
        self.token = int(self.np_random.integers(0, 1000))
        self.length = SHORT if self.np_random.integers(2) else LONG
        self.t = 0
        return np.array([self.token, 0]), {}

    def step(self, action):
        assert self.t < self.length, "stepped beyond the end"
        self.t += 1
        self.steps += 1
        reward = float((self.token + 3 * int(action)) % 11)
        return np.array([self.token, self.t]), reward, self.t == self.length, False, {}

    def render(self):
        return np.full((4, 6, 3), self.t, dtype=np.uint8)

    def close(self):
        self.closed = True


class EndlessEnv(CoinEnv):
    """Never ends."""

    def reset(self, *, seed=None, options=None):
        answer = super().reset(seed=seed)
        self.length = 10**9
        return answer


class FaultyEnv(CoinEnv):
    """Raises at one step of its life, or at one reset."""

    def __init__(self, at_step=None, at_reset=None):
        super().__init__()
        self.at_step, self.at_reset = at_step, at_reset

    def reset(self, *, seed=None, options=None):
        if len(self.resets) == self.at_reset:
            raise KeyError("the simulator is gone")
        return super().reset(seed=seed)

    def step(self, action):
        if self.steps == self.at_step:
            self.at_step = None
            raise KeyError("the simulator is gone")
        return super().step(action)


def integer_policy(observation):
    """Actions from integers alone, the same whatever the batch size."""
    return (observation[..., 0] + observation[..., 1]) % 7


def expected(seed):
    """Return and length of the episode that starts from this seed, under the integer policy."""
    env = CoinEnv()
    observation, _ = env.reset(seed=int(seed))
    total, done = 0.0, False
    while not done:
        action = int(integer_policy(torch.as_tensor(observation)))
        observation, reward, done, _, _ = env.step(action)
        total += reward
    return total, env.t


def evaluate_once(policy, env, request, slots=None):
    with LocalEvaluation(env, slots) as evaluation:
        return evaluation.run(policy, request)
