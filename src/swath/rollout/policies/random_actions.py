"""Random actions, bound to a host: for whoever has no policy, and in the place of one that has yet to begin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from swath.keys import ACTION_MASK
from swath.rollout.buffer import Column, column_of
from swath.rollout.hosts.specs import ArraySpec
from swath.rollout.policies.bound import BoundPolicy
from swath.rollout.policies.random_policy import RandomPolicy
from swath.rollout.spaces import Leaves


class RandomActions:
    """Random actions in the place of a bound policy; what only that policy writes is zero, so that keys stay."""

    def __init__(self, policy: RandomPolicy, spec: ArraySpec, like: BoundPolicy | None = None) -> None:
        self.explores = False
        self._like = like
        self._sample = policy.sampler(spec.action_space, spec.num_envs)
        self._mask_at = _mask_at(spec)
        self._others = () if like is None else like.columns[len(spec.action) :]
        self.keys = tuple(leaf.key for leaf in spec.action) if like is None else like.keys
        self.columns = tuple(column_of(leaf) for leaf in self._sample(None)) if like is None else like.columns

    def __call__(self, observation: Leaves) -> Leaves:
        """Random actions, zeros, and what the policy would have remembered."""
        mask = None if self._mask_at is None else torch.from_numpy(observation[self._mask_at])
        memory = self.skip()
        zeros = self._others[: len(self._others) - len(memory)]
        return [*self._sample(mask), *(_zero_row(column) for column in zeros), *memory]

    def begin(self, envs: Sequence[int]) -> None:
        """The policy forgets."""
        if self._like is not None:
            self._like.begin(envs)

    def rewind(self) -> None:
        """The policy goes back."""
        if self._like is not None:
            self._like.rewind()

    def skip(self) -> Leaves:
        """The policy's memory."""
        return [] if self._like is None else self._like.skip()

    def take_over(self, other: Any) -> None:
        """Nothing is remembered here."""


def _mask_at(spec: ArraySpec) -> int | None:
    keys = [leaf.key for leaf in spec.observation]
    return keys.index(ACTION_MASK) if ACTION_MASK in keys else None


def _zero_row(column: Column) -> Any:
    return (
        column.allocate(1)[:, 0] * 0 if isinstance(column.dtype, torch.dtype) else np.zeros(column.shape, column.dtype)
    )
