"""Fragments of the loop without a collector."""

from __future__ import annotations

import numpy as np

from swath.rollout.failures import Failures
from swath.rollout.loop import Rules, Stage, StepLimit, go_on, steps


class Forgiving:
    """Remembers which env raised what, and forgives."""

    def __init__(self):
        self.raised = []

    def __call__(self, env, error):
        self.raised.append((env, str(error)))


def stage_of(host, seeds=None):
    return Stage(host.reset_all(seeds))


def rules_of(host, *, limit=None, begin=go_on, forgive=None):
    step_limit = StepLimit.of(host.spec, limit)
    step_limit.restart(range(host.spec.num_envs))
    return Rules(step_limit, begin, Failures() if forgive is None else Failures(2, forgive))


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
