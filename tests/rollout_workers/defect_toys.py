"""Sets of real workers whose envs and policies misbehave when they are told to, wherever they live."""

import os
from functools import partial

import gymnasium as gym
import numpy as np
from toy_rollout_worker import Broken, act

from swath.rollout_workers import AlgorithmConfig, DefaultCallbacks, PPOTorchPolicy, WorkerSet

DEFAULT = "default_policy"
ENVS, LENGTH = 2, 5
ROWS = ENVS * LENGTH
"""Of a fragment."""


class Armed(gym.Env):
    """Episodes of seven steps from a start that is drawn; the next step does what it is armed with."""

    def __init__(self, context):
        self.observation_space, self.action_space = gym.spaces.Box(0, 9, (2,), np.float32), gym.spaces.Discrete(2)
        self.arms = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        self.start = self.np_random.random()
        return self.seen(), {}

    def step(self, action):
        arms, self.arms = self.arms, None
        act(arms)
        self.at += 1
        return self.seen(), 1.0, False, self.at == 7, {}

    def seen(self):
        return np.array([self.at, self.start], np.float32)


class Fragile(PPOTorchPolicy):
    """Raises once when it is told to."""

    broken = False

    def compute_actions(self, *args, **kwargs):
        if self.broken:
            self.broken = False
            raise Broken("a policy raised")
        return super().compute_actions(*args, **kwargs)


class First(DefaultCallbacks):
    """Notes what a worker's first batch was made with."""

    def on_sample_end(self, *, worker, samples, **kwargs):
        if not hasattr(worker, "first"):
            worker.first = set(samples["policy_version"].tolist()), worker.filters[DEFAULT].rs.n


def made(place):
    """Two workers there, and the local one."""
    own = AlgorithmConfig().env_runners(num_envs_per_env_runner=ENVS, rollout_fragment_length=LENGTH)
    own.env_runners(observation_filter="MeanStdFilter").debugging(seed=7).callbacks(First)
    own.training(model={"fcnet_hiddens": [4]}).fault_tolerance(delay_between_env_runner_restarts_s=0.0)
    return WorkerSet(env_creator=Armed, default_policy_class=Fragile, config=own, num_workers=2, backend=place)


def only(workers, func, worker, **options):
    """What one remote worker answers."""
    (answer,) = workers.foreach_worker(func, worker_ids=[worker], local_worker=False, **options)
    return answer


def arm(workers, worker, arms):
    """Let the next step of a worker do this."""
    only(workers, partial(_arm, arms), worker)


def _arm(arms, worker):
    worker.env.arms = arms


def pid(worker):
    """Its process."""
    return os.getpid()


def kill(worker):
    """End its process."""
    os.kill(os.getpid(), 9)
