"""From a policy to what acts for a host in an evaluation.

deterministic, unseeded, or beside other threads  ──▶ one call for all B rows
sampled from a seed                               ──▶ one call per row, each with the noise of its own episode
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from tensordict import TensorDictBase

from swath.evaluation.runner import EpisodeOf, Performer
from swath.keys import Key
from swath.rollout.hosts.base import ArraySpec, HostSpec, TensorDictSpec
from swath.rollout.policies.answers import require_fitting
from swath.rollout.policies.binding import bind
from swath.rollout.policies.calling import Binding, ExplorationType, device_of
from swath.rollout.seeding import PrivateStreams, preserved
from swath.rollout.spaces import Array, Leaves, structured
from swath.seeds import derive


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


@dataclass(frozen=True)
class EvalPolicy:
    """How a policy acts in one evaluation.

    Attributes:
        policy: any policy form, or an object with `predict`; called as it is.
        spec: the host's envs.
        exploration: how it picks actions.
        noise_root: root of the noise of each episode; `None` draws from the process's own generators.
        device: where its inputs go; `None`: where its weights are.
        beside_others: other threads draw from the process's generators meanwhile: they are left alone, and noise is
            drawn from them.
    """

    policy: Any
    spec: HostSpec
    exploration: ExplorationType
    noise_root: int | None
    device: torch.device | None = None
    beside_others: bool = False

    @property
    def place(self) -> torch.device | None:
        """Where it runs; `None` for the CPU."""
        return self.device or device_of(self.policy)

    def bind(self, observation: Leaves, episode_of: EpisodeOf) -> Performer:
        """The policy, bound to the host; the process's random states are left as they are."""
        if self.beside_others:
            return self._bind(self.spec, observation)
        with preserved(self.place):
            if self.exploration is not ExplorationType.RANDOM or self.noise_root is None or self._is_seeded_as_one:
                return self._bind(self.spec, observation)
            return self._row_by_row(observation, episode_of, self.noise_root)

    @property
    def _is_seeded_as_one(self) -> bool:
        """Whether episodes have no seeds of their own, and rows of a batch of TorchRL's none that are alike."""
        return isinstance(self.spec, TensorDictSpec) and self.spec.seeding != "episode"

    def _row_by_row(self, observation: Leaves, episode_of: EpisodeOf, root: int) -> Performer:
        spec = replace(self.spec, num_envs=1, batch_shape=(1,) if self.spec.batch_shape else ())
        rows = [self._bind(spec, _row(observation, slot)) for slot in range(self.spec.num_envs)]
        device = self.place
        return RowByRow(rows, episode_of, lambda episode: PrivateStreams(derive(root, "noise", 0, episode), device))

    def _bind(self, spec: HostSpec, observation: Leaves) -> Performer:
        if isinstance(self.policy, Predicts):
            return self._predictor(spec)
        return bind(self.policy, spec, observation, Binding(self.place, self.exploration))

    def _predictor(self, spec: HostSpec) -> Performer:
        if isinstance(spec, ArraySpec):
            return Predictor(self.policy, spec, deterministic=self.exploration is not ExplorationType.RANDOM)
        raise TypeError(f"{type(self.policy).__name__}.predict takes arrays, this env gives TensorDicts; pass a policy")


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
        for slot in range(len(self._rows)):
            self._act(slot, observation)
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
        """Forget the last call."""
        for row in self._rows:
            row.rewind()

    def _act(self, slot: int, observation: Leaves) -> None:
        if self._episode_of(slot) is None:
            if slot not in self._last:
                with preserved():
                    self._last[slot] = self._rows[slot](_row(observation, slot))
            return
        with self._noises[slot][1].in_force():
            self._last[slot] = self._rows[slot](_row(observation, slot))


def _row(leaves: Leaves, slot: int) -> Leaves:
    """The leaves of one slot; a TensorDict without batch dimension is its own, with entries that may be added to."""
    return [leaf[slot : slot + 1] if leaf.ndim else leaf.copy() for leaf in leaves]


def _stacked(rows: Sequence[Any]) -> Any:
    if isinstance(rows[0], TensorDictBase):
        return torch.cat([*rows]) if rows[0].ndim else rows[0]
    return torch.cat(list(rows)) if isinstance(rows[0], torch.Tensor) else np.concatenate(rows)
