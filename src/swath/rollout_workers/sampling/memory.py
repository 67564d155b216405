"""What is remembered of B envs from one step to the next, for policies that ask for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from swath.rollout.spaces import Array, Leaves
from swath.rollout_workers.batches.leaves import as_array
from swath.rollout_workers.nests import has_empty, leaves_of, map_nest, nest_of


class States:
    """The states of a recurrent policy, per env.

    Args:
        initial: those with which episodes begin, nested or not.
        num_envs: B.

    Attributes:
        template: a nest of their structure.
        leaves: of the moment, `[B, …]`.
    """

    def __init__(self, initial: Sequence[Any], num_envs: int) -> None:
        self.template = tuple(arrays(state) for state in filled(initial))
        self._initial: Leaves = leaves_of(self.template)
        self.leaves: Leaves = [np.stack([leaf] * num_envs) for leaf in self._initial]

    @property
    def nests(self) -> list[Any]:
        """One batch `[B, …]` per state."""
        return list(nest_of(self.template, self.leaves))

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
        return [as_array(leaf) for leaf in leaves_of(tuple(states), self.template)]


def filled(initial: Sequence[Any]) -> Sequence[Any]:
    """The states with which episodes begin.

    Raises:
        ValueError: one is an empty structure, or has one in it.
    """
    for state in initial:
        if has_empty(state):
            raise ValueError(f"get_initial_state() gives {state!r}; begin with arrays of the shapes of later states")
    return initial


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


def arrays(nest: Any) -> Any:
    """A nest of arrays, of whatever a policy answered."""
    return map_nest(as_array, nest) if isinstance(nest, dict | tuple) else as_array(nest)
