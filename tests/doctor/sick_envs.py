"""Envs with one fault each, and a healthy one; policies too."""

import ctypes
import faulthandler
import os
import random
import signal
import sys
import threading

import gymnasium as gym
import numpy as np
import torch

LENGTH = 8


class Healthy(gym.Env):
    """Observes two random numbers, for episodes of eight steps."""

    observation_space = gym.spaces.Box(0, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = LENGTH
        return self.look(), {}

    def step(self, action):
        self.left -= 1
        return self.look(), 1.0, self.left == 0, False, {}

    def look(self):
        return self.np_random.random(2, np.float32)


class Locked(Healthy):
    def __init__(self):
        self.lock = threading.Lock()


class Leaking(Healthy):
    def __init__(self):
        self.kept = []

    def step(self, action):
        self.kept.append(np.zeros(256))
        return super().step(action)


class Seedless(Healthy):
    def look(self):
        return np.array([random.random(), 0], np.float32)


class Remembering(Healthy):
    """Goes on where it was, whatever the seed."""

    level = 0.0

    def reset(self, *, seed=None, options=None):
        self.level = (self.level + 0.1) % 1
        return super().reset(seed=seed)

    def look(self):
        return np.array([self.level, 0], np.float32)


class Wide(Healthy):
    def look(self):
        return super().look().astype(np.float64)


class Flat(Healthy):
    def look(self):
        return super().look()[:1]


class Undefined(Healthy):
    def look(self):
        return np.array([np.nan, 0], np.float32)


class Beyond(Healthy):
    def look(self):
        return np.array([0, 2], np.float32)


class Old(Healthy):
    """Four values, as Gym had it."""

    def step(self, action):
        return super().step(action)[:4]


class Rewarding(Healthy):
    """Pays in arrays."""

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, np.array([reward]), *rest


class Bare(Healthy):
    """An observation alone."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class Narrow(Healthy):
    """Takes no seed."""

    def reset(self):
        return super().reset()


class Stuck(Healthy):
    def close(self):
        raise OSError("the door is stuck")


class Leaving(Healthy):
    def step(self, action):
        raise SystemExit("enough")


class Raising(Healthy):
    def step(self, action):
        raise ZeroDivisionError("by nothing")


class Tiring(Healthy):
    """Raises after a while."""

    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps > 400:
            raise ZeroDivisionError("by nothing")
        return super().step(action)


def wait():
    """For ever, in a way that Python's signals end."""
    threading.Event().wait()


def waits(*arguments):
    wait()


class Waiting(Healthy):
    """Waits in its fifth step."""

    def step(self, action):
        if self.left == LENGTH - 4:
            wait()
        return super().step(action)


class Dead(Healthy):
    """Waits in native code that gives Python no turn."""

    def reset(self, *, seed=None, options=None):
        ctypes.PyDLL(None).pause()


class Lingering(Healthy):
    def close(self):
        wait()


class Unborn(Healthy):
    def __init__(self):
        wait()


class Exiting(Healthy):
    def __init__(self):
        raise SystemExit("no licence")


class Greeting(Healthy):
    """Says one line, as native code does."""

    def __init__(self):
        os.write(1, b"hello\n")


class Loud(Greeting):
    def step(self, action):
        print("stepping with", action)  # noqa: T201  its fault
        return super().step(action)


class Ticking(Greeting):
    """Shows its progress in one line of the screen."""

    def step(self, action):
        print("stepping with", action, end="\r")  # noqa: T201  its fault
        return super().step(action)


class Stopped(Healthy):
    def step(self, action):
        signal.raise_signal(signal.SIGSTOP)


class Unwatched(Healthy):
    """Takes the watchdog away, and waits."""

    def step(self, action):
        faulthandler.cancel_dump_traceback_later()
        wait()


class Talking(Healthy):
    """Never stops."""

    def step(self, action):
        while True:
            os.write(1, b"and another thing\n" * 1000)


class Mute(Healthy):
    """Closes what Python prints to."""

    def __init__(self):
        sys.stdout.close()


class Silenced(Healthy):
    """Closes it below Python, which has something to print."""

    is_silent = False

    def __init__(self):
        if not self.is_silent:
            type(self).is_silent = True
            print("hello", end="")  # noqa: T201  its fault
            os.dup2(os.open(os.devnull, os.O_RDONLY), 1)


class Crashing(Healthy):
    def step(self, action):
        os._exit(3)


class Shy(Healthy):
    """Waits where it is copied."""

    def __getstate__(self):
        wait()


class Endless(Healthy):
    def step(self, action):
        return self.look(), 0.0, False, False, {}


class Texting(Healthy):
    observation_space = gym.spaces.Text(5)


class Unsettled(Healthy):
    """Begins the next episode by itself."""

    def step(self, action):
        *answer, info = super().step(action)
        return (*answer, {"final_obs": answer[0]} if answer[2] else info)


def vector(mode):
    """Two healthy envs that step as a batch."""
    return gym.vector.SyncVectorEnv([Healthy, Healthy], autoreset_mode=mode)


def next_step():
    return vector(gym.vector.AutoresetMode.NEXT_STEP)


def same_step():
    return vector(gym.vector.AutoresetMode.SAME_STEP)


def disabled():
    return vector(gym.vector.AutoresetMode.DISABLED)


def declared(mode):
    """Does SAME_STEP, says another thing."""
    env = same_step()
    env.metadata = {**env.metadata, "autoreset_mode": mode}
    return env


def lying():
    return declared(gym.vector.AutoresetMode.NEXT_STEP)


def silent():
    return declared(None)


def checked():
    """Gymnasium's own wrappers meet its four values first."""
    return gym.wrappers.TimeLimit(Old(), 5)


def unbuildable():
    raise FileNotFoundError("level1.map")


def acts(observation):
    return (observation[..., 0] > 0.5).long()


def quits(observation):
    raise SystemExit("no idea")


def ponders(observation):
    wait()


def logits(observation):
    """Forgets to sample."""
    return torch.stack([observation[..., 0], observation[..., 1]], -1)
