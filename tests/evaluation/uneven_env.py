"""An env of very unequal episodes, whose returns and lengths follow from seed and actions in whole numbers."""

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

SHORT, LONG = 3, 41


class UnevenEnv(gym.Env):
    """Episodes of 3 or 41 steps with equal chance; observes (token, step), the token being the seed's.

    Rewards are whole numbers that depend on token and action, so that returns show which episode and which policy it
    was. Stepping it beyond an end is an error.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}
    observation_space = spaces.Box(0, 10**6, (2,), np.int64)
    action_space = spaces.Discrete(7)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.steps = 0
        self.resets = []
        self.closed = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.resets.append(seed)
        self.token = int(self.np_random.integers(0, 1000))
        self.length = SHORT if self.np_random.integers(2) else LONG
        self.t = 0
        return np.array([self.token, 0]), {}

    def step(self, action):
        if self.t >= self.length:
            raise RuntimeError(f"stepped beyond the end of an episode of {self.length} steps")
        self.t += 1
        self.steps += 1
        reward = float((self.token + 3 * int(action)) % 11)
        return np.array([self.token, self.t]), reward, self.t == self.length, False, {}

    def render(self):
        return np.full((4, 6, 3), self.t, dtype=np.uint8)

    def close(self):
        self.closed = True


gym.register("UnevenEnv-v0", "uneven_env:UnevenEnv")  # "uneven_env:UnevenEnv-v0" is an id everywhere


class Shifted(torch.nn.Module):
    """Acts from whole numbers alone, so the same whatever the batch size; its one weight shifts the actions."""

    def __init__(self, shift=0):
        super().__init__()
        self.shift = torch.nn.Parameter(torch.tensor(float(shift)))

    def forward(self, observation):
        return (observation.sum(-1) + self.shift.long()) % 7


def played(seed, shift=0):
    """Return and length of the episode that begins from this seed, under `Shifted(shift)`."""
    env = UnevenEnv()
    observation, _ = env.reset(seed=int(seed))
    total, over = 0.0, False
    while not over:
        observation, reward, over, _, _ = env.step((int(observation.sum()) + shift) % 7)
        total += reward
    return total, env.t
