"""What is remembered of B envs from one step to the next, for policies that ask for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from swath.rollout.hosts.base import Infos
from swath.rollout.hosts.infos import info_of
from swath.rollout.spaces import Array, Leaves
from swath.rollout_workers.batches.leaves import as_array
from swath.rollout_workers.nests import has_empty, leaves_of, map_nest, nest_of
from swath.rollout_workers.sampling.open_states import boxed, in_one, in_rows


class States:
    """The states of a recurrent policy, per env.

    A state with an empty nest in it is one leaf here: an object per env.

    Args:
        initial: those with which episodes begin, nested or not.
        num_envs: B.

    Attributes:
        template: a nest of their structure.
        leaves: of the moment, `[B, …]`.
    """

    def __init__(self, initial: Sequence[Any], num_envs: int) -> None:
        self._n = num_envs
        self._open = [has_empty(state) for state in initial]
        self.template = tuple(boxed(state) if has_empty(state) else arrays(state) for state in initial)
        self._initial: Leaves = leaves_of(self.template)
        self.leaves: Leaves = [np.stack([leaf] * num_envs) for leaf in self._initial]

    @property
    def nests(self) -> list[Any]:
        """One batch `[B, …]` per state."""
        nests = nest_of(self.template, self.leaves)
        return [in_one(nest) if opened else nest for opened, nest in zip(self._open, nests, strict=True)]

    def begin(self, envs: Sequence[int]) -> None:
        """Episodes begin in these envs."""
        if not self.leaves:
            return
        self.leaves = [leaf.copy() for leaf in self.leaves]
        for leaf, initial in zip(self.leaves, self._initial, strict=True):
            leaf[list(envs)] = initial

    def flat(self, states: Sequence[Any]) -> Leaves:
        """The leaves `[B, …]` of what a policy answered.

        Raises:
            ValueError: they are more or fewer than the states with which episodes begin.
        """
        if len(states) != len(self.template):
            raise ValueError(f"the policy answered {len(states)} states; get_initial_state() has {len(self.template)}")
        each = [in_rows(s, self._n) if opened else s for opened, s in zip(self._open, states, strict=True)]
        return [as_array(leaf) for leaf in leaves_of(tuple(each), self.template)]


class Before:
    """The action and the reward of the step before, zeros where an episode begins.

    Args:
        actions: raw action leaves, of which only shapes and dtypes matter; `[B, …]`.
    """

    def __init__(self, actions: Leaves) -> None:
        self.actions: Leaves = [np.zeros_like(leaf) for leaf in actions]
        self.rewards: Array = np.zeros(len(actions[0]), dtype=np.float32)

    def remember(self, actions: Leaves, rewards: Array) -> None:
        """A step was made."""
        self.actions = [np.array(leaf) for leaf in actions]
        self.rewards = np.array(rewards, dtype=np.float32)

    def begin(self, envs: Sequence[int]) -> None:
        """Episodes begin in these envs."""
        for leaf in (*self.actions, self.rewards):
            leaf[list(envs)] = 0


def infos_of(infos: Infos, num_envs: int) -> list[Any]:
    """What the envs said beside, one mapping each."""
    return [info_of(infos, env) for env in range(num_envs)]


def arrays(nest: Any) -> Any:
    """A nest of arrays, of whatever a policy answered."""
    return map_nest(as_array, nest) if isinstance(nest, dict | tuple) else as_array(nest)
