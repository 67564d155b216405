"""Objects with `predict`, as Stable-Baselines3 has them, acting for a host.

leaves [B, …] ──▶ observation, dict or tuple of them ──▶ predict(obs, state, episode_start, deterministic) ──▶ actions
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from swath.keys import Key
from swath.rollout.hosts.base import ArraySpec
from swath.rollout.policies.answers import require_fitting
from swath.rollout.spaces import Array, Leaves, structured


@runtime_checkable
class Predicts(Protocol):
    """What picks actions by `predict`."""

    def predict(self, observation: Any, state: Any, episode_start: Any, deterministic: bool) -> tuple[Any, Any]:
        """Actions `[B, …]` and the next state."""


class Predictor:
    """A `predict` object bound to a host.

    Args:
        model: called with keywords `state`, `episode_start`, `deterministic`; used as it is.
        spec: the host's envs.
        deterministic: asked of `predict`.

    Attributes:
        state: what the last `predict` returned beside the actions.
        starts: bool `[B]`: episodes that begin with the next call.
        keys: of what it answers.
    """

    def __init__(self, model: Predicts, spec: ArraySpec, *, deterministic: bool) -> None:
        self._model, self._spec, self._deterministic = model, spec, deterministic
        self.keys: tuple[Key, ...] = (spec.action[0].key,)
        self.state: Any = None
        self.starts: Array = np.ones(spec.num_envs, dtype=np.bool_)
        self._before = self.state, self.starts

    def __call__(self, observation: Leaves) -> Leaves:
        """Actions for this observation."""
        self._before = self.state, self.starts
        seen = structured(self._spec.observation_space, iter(observation))
        answer = self._model.predict(
            seen, state=self.state, episode_start=self.starts, deterministic=self._deterministic
        )
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise TypeError(f"predict returned {answer!r}; it must return (actions, state)")
        action, self.state = answer
        self.starts = np.zeros_like(self.starts)
        return [self._checked(action)]

    def begin(self, envs: Sequence[int]) -> None:
        """Episodes begin in these envs."""
        self.starts = self.starts.copy()
        self.starts[list(envs)] = True

    def rewind(self) -> None:
        """Take the state back to what it was before the last call."""
        self.state, self.starts = self._before

    def _checked(self, action: Any) -> Array:
        leaf, rows = self._spec.action[0], np.asarray(action)
        wanted = (self._spec.num_envs, *leaf.shape)
        if rows.shape != wanted or len(self._spec.action) > 1:
            raise ValueError(f"predict returned actions of shape {rows.shape}; the envs want {wanted}")
        require_fitting((leaf.key,), [rows], self._spec)
        return rows
