"""Sets of rollout workers that are quick to build and do what a script says: they wait, raise, die."""

import os
import signal
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from swath.rollout_workers import AlgorithmConfig, DefaultCallbacks, MultiAgentEnv, Policy, WorkerSet
from toys import Gate

STEPS = 3
"""Of a fragment."""

DEFAULT = "default_policy"
SPACES = gym.spaces.Box(0, np.inf, (3,)), gym.spaces.Discrete(2)


class Broken(Exception):
    """The exception of a script."""


def act(action):
    """Perform an action: "kill", "exit", "raise", or go through a gate."""
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "exit":
        raise SystemExit(3)
    elif action == "raise":
        raise Broken("an env raised")
    elif isinstance(action, Gate):
        action.go_through()


@dataclass(frozen=True)
class Play:
    """What happens when workers sample: `acts` by (worker, life, number of the sample); `builds` by (worker, life)."""

    acts: dict[Any, Any] = field(default_factory=dict)
    builds: dict[Any, Any] = field(default_factory=dict)

    def __call__(self, context):
        return Acting(self)


class Acting(MultiAgentEnv):
    """One agent sees its worker, that worker's life and how many steps were made; episodes have no end."""

    def __init__(self, play):
        self.agents, (self.observation_space, self.action_space) = ["one"], SPACES
        self.play, self.who, self.steps, self.acts = play, (0, 0), 0, {}
        super().__init__()

    def begin(self, worker, life):
        self.who = worker, life
        acts = self.play.acts.items()
        self.acts = {number: action for (*place, number), action in acts if [worker, life] == place}
        act(self.play.builds.get(self.who))

    def reset(self, *, seed=None, options=None):
        return self.seen(), {}

    def step(self, action_dict):
        number, within = divmod(self.steps, STEPS)
        act(None if within else self.acts.pop(number + 1, None))
        self.steps += 1
        return self.seen(), {"one": 1.0}, {"__all__": False}, {"__all__": False}, {}

    def seen(self):
        return {"one": np.array([*self.who, self.steps], np.float32)}


class Beginning(DefaultCallbacks):
    """Tells envs where they are."""

    def on_sub_environment_created(self, *, worker, sub_environment, **kwargs):
        sub_environment.begin(worker.worker_index, worker.life)


class ToyPolicy(Policy):
    """Has one weight: at first the number of its worker."""

    def __init__(self, observation_space, action_space, config):
        super().__init__(observation_space, action_space, config)
        self.w = np.full(2, config.get("worker_index", 0), np.float32)

    def compute_actions(self, obs_batch, *args, **kwargs):
        return np.zeros(len(obs_batch), np.int64), [], {}

    def get_weights(self):
        return {"w": self.w.copy()}

    def set_weights(self, weights):
        if weights["w"].shape != (2,):
            raise ValueError(f"w has shape {weights['w'].shape}")
        self.w = np.array(weights["w"])


def weighing(value):
    """A policy with this weight."""
    policy = ToyPolicy(*SPACES, {})
    policy.w[:] = value
    return policy


def config(**settings):
    """Quick to restart."""
    result = AlgorithmConfig().fault_tolerance(delay_between_env_runner_restarts_s=0.0).callbacks(Beginning)
    return result.env_runners(rollout_fragment_length=STEPS).update_from_dict(settings)


def toy_set(play=None, n=2, backend="inline", options=(), **settings):
    """Return a set of toy workers; `settings` are the config's."""
    arguments = {"env_creator": play or Play(), "default_policy_class": ToyPolicy, "config": config(**settings)}
    return WorkerSet(**{**arguments, "num_workers": n, "backend": backend, **dict(options)})


def rows(batch):
    """(worker, life, step) of each row."""
    return [tuple(row) for row in batch["obs"].astype(int).tolist()]


def workers_of(batch):
    """Return the workers of the batch's fragments, in order."""
    return [worker for worker, _, _ in rows(batch)[::STEPS]]
