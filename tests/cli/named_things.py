"""Envs and policies that a command line names as `named_things:name`."""

import gymnasium as gym
import numpy as np

LENGTH = 5


class Plain(gym.Env):
    """Short episodes, all alike."""

    observation_space = gym.spaces.Box(0, 8, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._at = 0
        return self._look(), {}

    def step(self, action):
        self._at += 1
        return self._look(), 1.0, self._at == LENGTH, False, {}

    def _look(self):
        return np.full(2, self._at, np.float32)


class Doubtful(Plain):
    """Observations have another dtype than their space."""

    def _look(self):
        return super()._look().astype(np.float64)


class Wide(Plain):
    """Observes `width` numbers."""

    def __init__(self, width=2):
        self.observation_space = gym.spaces.Box(0, 8, (width,), np.float32)

    def _look(self):
        return np.full(self.observation_space.shape, self._at, np.float32)


class Drawn(Plain):
    """Renders frames, if `render_mode` says so."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def render(self):
        return np.full((16, 16, 3), 50 * self._at, np.uint8)


def plain():
    return Plain()


def several():
    return gym.vector.SyncVectorEnv([plain, plain], autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)


def acts(observation):
    return (observation[..., 0] > 2).long()


gym.register("NamedPlain-v0", Plain)
