"""Specs and observations without an env, and fragments of the loop without a collector."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from swath.rollout.hosts.base import EnvRaised, HostSpec
from swath.rollout.loop import Rules, Stage, go_on, steps
from swath.rollout.spaces import action_leaves, observation_leaves
from swath.rollout.until import StepLimit

VECTOR = spaces.Box(-10, 10, (4,))


def spec_of(observation=VECTOR, action=None, num_envs=3, *, bare=False):
    action = spaces.Discrete(2) if action is None else action
    return HostSpec(
        num_envs=1 if bare else num_envs,
        batch_shape=() if bare else (num_envs,),
        observation=observation_leaves(observation),
        action=action_leaves(action),
        action_space=action,
    )


def observed(spec, seed=0):
    """Leaves [B, …] with other values in every entry."""
    rng = np.random.default_rng(seed)
    return [
        rng.integers(0, 2, (spec.num_envs, *leaf.shape)).astype(leaf.dtype)
        if leaf.dtype.kind in "iub"
        else rng.normal(size=(spec.num_envs, *leaf.shape)).astype(leaf.dtype)
        for leaf in spec.observation
    ]


class Forgiving:
    """Remembers which env raised what, and forgives."""

    def __init__(self):
        self.raised = []

    def __call__(self, env, error):
        self.raised.append((env, str(error)))


def unforgiving(env, error):
    raise EnvRaised(env, error)


def stage_of(host, seeds=None):
    return Stage(host.reset_all(seeds))


def rules_of(host, *, limit=None, begin=go_on, forgive=unforgiving):
    step_limit = StepLimit([limit] * host.spec.num_envs)
    step_limit.restart(range(host.spec.num_envs))
    return Rules(step_limit, begin, forgive)


def drawn(host, policy, n_steps, stage=None, rules=None):
    """The first steps of the loop."""
    source = steps(host, policy, stage or stage_of(host), rules or rules_of(host))
    return [next(source) for _ in range(n_steps)]


class Constant:
    """An actor that gives every env the action zero, and counts what it is told."""

    def __init__(self, spec, outputs=()):
        self.action = [np.zeros((spec.num_envs, *leaf.shape), leaf.dtype) for leaf in spec.action]
        self.outputs = list(outputs)
        self.calls, self.begun, self.rewound = 0, [], 0

    def __call__(self, observation):
        self.calls += 1
        return [*self.action, *self.outputs]

    def begin(self, envs):
        self.begun.append(list(envs))

    def rewind(self):
        self.rewound += 1
