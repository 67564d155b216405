"""A host that does what another one does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from swath.rollout.hosts.base import ArrayHost, ArraySpec, Transition
from swath.rollout.spaces import Array, Leaves


class WrappedHost:
    """Hands everything on; derive from it what does some of it differently.

    Args:
        inner: the host that does it.
    """

    def __init__(self, inner: ArrayHost) -> None:
        self.inner = inner
        self.spec: ArraySpec = inner.spec

    @property
    def env(self) -> Any:
        """The live env object."""
        return self.inner.env

    def reset_all(self, seeds: Sequence[int] | None = None) -> Leaves:
        """Begin an episode in every env."""
        return self.inner.reset_all(seeds)

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs."""
        return self.inner.reset(envs, onto, seeds)

    def step(self, action: Leaves) -> Transition:
        """Advance every env."""
        return self.inner.step(action)

    def step_one(self, env: int, action: Leaves) -> Transition:
        """Advance this env alone."""
        return self.inner.step_one(env, action)

    def rebuild(self) -> Leaves:
        """Build everything anew."""
        return self.inner.rebuild()

    def retire(self, envs: Sequence[int]) -> None:
        """Step these envs no more."""
        self.inner.retire(envs)

    def render(self, env: int) -> Array | None:
        """A frame of this env."""
        return self.inner.render(env)

    def info_of(self, env: int) -> Mapping[str, Any]:
        """What this env said with its latest observation."""
        return self.inner.info_of(env)

    def seed_of(self, env: int) -> int | None:
        """The seed this env was last given."""
        return self.inner.seed_of(env)

    def close(self) -> None:
        """Close the envs."""
        self.inner.close()
