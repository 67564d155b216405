"""What acts for a host in an evaluation, where that is no policy that is called for all rows at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from tensordict import TensorDictBase

from swath.keys import Key
from swath.rollout.hosts.base import ArraySpec
from swath.rollout.loop import Actor
from swath.rollout.policies.answers import require_fitting
from swath.rollout.seeding import PrivateStreams, preserved
from swath.rollout.spaces import Array, Leaves, structured

EpisodeOf = Callable[[int], int | None]  # the number of the episode that a slot plays


@runtime_checkable
class Predicts(Protocol):
    """What picks actions by `predict`."""

    def predict(self, observation: Any, state: Any, episode_start: Any, deterministic: bool) -> tuple[Any, Any]:
        """Actions `[B, …]` and the next state."""


class Performer(Actor, Protocol):
    """A policy that is bound to a host, with the keys of what it answers, those of the action first."""

    keys: tuple[Key, ...]


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

    def __call__(self, observation: Leaves) -> Leaves:
        """Actions for this observation.

        Raises:
            TypeError: `predict` returned something else than actions and a state.
            ValueError: actions of another shape.
        """
        leaf, *more = self._spec.action
        seen = structured(self._spec.observation_space, iter(observation))
        answer = self._model.predict(
            seen, state=self.state, episode_start=self.starts, deterministic=self._deterministic
        )
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise TypeError(f"predict returned {answer!r}; it must return (actions, state)")
        rows, self.state = np.asarray(answer[0]), answer[1]
        self.starts = np.zeros_like(self.starts)
        wanted = (self._spec.num_envs, *leaf.shape)
        if rows.shape != wanted or more:
            raise ValueError(f"predict returned actions of shape {rows.shape}; the envs want {wanted}")
        require_fitting(self.keys, [rows], self._spec)
        return [rows]

    def begin(self, envs: Sequence[int]) -> None:
        """Episodes begin in these envs."""
        self.starts[list(envs)] = True

    def rewind(self) -> None:
        """Nothing is made again in an evaluation: the first failure ends it."""


class RowByRow:
    """A policy called once per slot, with the noise of the slot's episode; slots without one keep their last row.

    Args:
        rows: the policy, bound once per slot to a single env.
        episode_of: the episode that a slot plays.
        noise_of: makes the noise of an episode.
    """

    def __init__(
        self, rows: Sequence[Performer], episode_of: EpisodeOf, noise_of: Callable[[int], PrivateStreams]
    ) -> None:
        self._rows, self._episode_of, self._noise_of = rows, episode_of, noise_of
        self.keys = rows[0].keys
        self._noises: dict[int, tuple[int, PrivateStreams]] = {}
        self._last: dict[int, Leaves] = {}

    def __call__(self, observation: Leaves) -> Leaves:
        """Outputs `[B, …]` for this observation."""
        for slot, row in enumerate(self._rows):
            idle = self._episode_of(slot) is None
            if not (idle and slot in self._last):
                with preserved() if idle else self._noises[slot][1].in_force():
                    self._last[slot] = row(row_of(observation, slot))
        answers = [self._last[slot] for slot in range(len(self._rows))]
        return [_stacked(leaves) for leaves in zip(*answers, strict=True)]

    def begin(self, envs: Sequence[int]) -> None:
        """Episodes begin in these slots, or go on after an end within them: their noise goes on then."""
        for slot in envs:
            self._rows[slot].begin([0])
            episode = self._episode_of(slot)
            if episode is not None and (slot not in self._noises or self._noises[slot][0] != episode):
                self._noises[slot] = episode, self._noise_of(episode)

    def rewind(self) -> None:
        """Nothing is made again in an evaluation: the first failure ends it."""


def row_of(leaves: Leaves, slot: int) -> Leaves:
    """The leaves of one slot; a TensorDict without batch dimension is its own, with entries that may be added to."""
    return [leaf[slot : slot + 1] if leaf.ndim else leaf.copy() for leaf in leaves]


def _stacked(rows: Sequence[Any]) -> Any:
    if isinstance(rows[0], TensorDictBase):
        return torch.cat([*rows]) if rows[0].ndim else rows[0]
    return torch.cat(list(rows)) if isinstance(rows[0], torch.Tensor) else np.concatenate(rows)
