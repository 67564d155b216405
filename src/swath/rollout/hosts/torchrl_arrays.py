"""The host for a TorchRL env whose observations and actions are to be arrays.

action leaves [B, …] ──▶ into the root [*B] ──▶ env steps ──▶ "next" [*B] ──▶ observation leaves [B, …]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from swath.keys import NEXT
from swath.rollout.hosts.base import Transition
from swath.rollout.hosts.specs import ArraySpec
from swath.rollout.hosts.torchrl import TorchRLHost
from swath.rollout.hosts.torchrl_spaces import Entries
from swath.rollout.spaces import Array, Leaves


class TorchRLArrayHost:
    """An `EnvBase`, stepped as a whole.

    Args:
        env: the env.
        make: builds it anew.

    Raises:
        TypeError: observations or actions that are no arrays.
    """

    def __init__(self, env: Any, make: Callable[[], Any] | None = None) -> None:
        self._seen, self._acted = Entries(env, "observation"), Entries(env, "action")
        self._inner = TorchRLHost(env, make, resets=False)
        self._root: Leaves = []
        n = self._inner.spec.num_envs
        self.spec = ArraySpec(
            num_envs=n,
            batch_shape=(n,),
            observation=self._seen.leaves,
            action=self._acted.leaves,
            action_space=self._acted.space,
            alone=False,
            seeding=self._inner.spec.seeding,
        )

    @property
    def spaces(self) -> tuple[Any, Any]:
        """Of one env's observations and actions."""
        return self._seen.space, self._acted.space

    @property
    def env(self) -> Any:
        """The env."""
        return self._inner.env

    def reset_all(self, seeds: Sequence[int] | None = None) -> Leaves:
        """Begin an episode in every env; the first seed is that of all, and the env deals it out."""
        self._root = self._inner.reset_all(seeds)
        return self._seen.read(self._root[0])

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs."""
        self._root = self._inner.reset(envs, self._root, seeds)
        fresh = [leaf.copy() for leaf in onto]
        for leaf, rows in zip(fresh, self._seen.read(self._root[0]), strict=True):
            leaf[list(envs)] = rows[list(envs)]
        return fresh

    def step(self, action: Leaves) -> Transition:
        """Advance every env."""
        made = list(self._root)
        self._acted.write(made[0], action)
        moved = self._inner.step(made)
        if moved.failed:
            return moved
        self._root = moved.observation
        reward = np.array(moved.reward, dtype=np.float64)
        return Transition(self._seen.read(made[0].get(NEXT)), reward, moved.ended)

    def step_one(self, env: int, action: Leaves) -> Transition:
        """Not possible: an `EnvBase` steps as a whole."""
        return self._inner.step_one(env, action)

    def rebuild(self) -> Leaves:
        """Close the env, build another and reset it."""
        self._root = self._inner.rebuild()
        return self._seen.read(self._root[0])

    def retire(self, envs: Sequence[int]) -> None:
        """Nothing to do: rows of these envs are ignored by whoever retired them."""

    def render(self, env: int) -> Array | None:
        """A frame of this env, if it makes any."""
        return self._inner.render(env)

    def seed_of(self, env: int) -> int | None:
        """The seed that was given to the env."""
        return self._inner.seed_of(env)

    def close(self) -> None:
        """Close the env; twice is fine."""
        self._inner.close()
