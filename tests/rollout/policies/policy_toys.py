"""Specs and observations without an env."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from swath.rollout.hosts.base import ArraySpec
from swath.rollout.spaces import action_leaves, observation_leaves

VECTOR = spaces.Box(-10, 10, (4,))


def spec_of(observation=VECTOR, action=None, num_envs=3, *, bare=False):
    action = spaces.Discrete(2) if action is None else action
    return ArraySpec(
        num_envs=1 if bare else num_envs,
        batch_shape=() if bare else (num_envs,),
        observation=observation_leaves(observation),
        action=action_leaves(action),
        observation_space=observation,
        action_space=action,
    )


def observed(spec, seed=0):
    """Return leaves [B, …] with different values in all entries."""
    rng = np.random.default_rng(seed)
    return [
        rng.integers(0, 2, (spec.num_envs, *leaf.shape)).astype(leaf.dtype)
        if leaf.dtype.kind in "iub"
        else rng.normal(size=(spec.num_envs, *leaf.shape)).astype(leaf.dtype)
        for leaf in spec.observation
    ]
