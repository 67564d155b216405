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


class States:
    """The states of a recurrent policy, per env.

    A state may begin as an empty nest, which the policy's first answer fills: from then on zeros stand for it in
    batches, and beside envs whose episodes run. Where all begin, the policy is shown what it said they begin with.

    Args:
        initial: those with which episodes begin, nested or not.
        num_envs: B.

    Attributes:
        template: a nest of their structure.
        leaves: of the moment, `[B, …]`.
    """

    def __init__(self, initial: Sequence[Any], num_envs: int) -> None:
        self._first = self.template = tuple(map_nest(as_array, tuple(initial)))
        self._n, self._asked, self._fills = num_envs, False, any(map(has_empty, self._first))
        self._begun: set[int] = set()
        self._set_initial()
        self.leaves: Leaves = [self._repeated(leaf) for leaf in self._initial]

    @property
    def nests(self) -> list[Any]:
        """One batch `[B, …]` per state."""
        if self._fills and len(self._begun) == self._n:
            return list(map_nest(self._repeated, self._first))
        return list(nest_of(self.template, self.leaves))

    def begin(self, envs: Sequence[int]) -> None:
        """Episodes begin in these envs."""
        if self._fills:
            self._begun.update(envs)
        if not self.leaves:
            return
        self.leaves = [leaf.copy() for leaf in self.leaves]
        for leaf, initial in zip(self.leaves, self._initial, strict=True):
            leaf[list(envs)] = initial

    def flat(self, states: Sequence[Any]) -> Leaves:
        """The leaves `[B, …]` of what a policy answered.

        Raises:
            ValueError: they are more or fewer than the states with which episodes begin, or have parts that neither
                those nor the first answer had.
        """
        if len(states) != len(self.template):
            raise ValueError(f"the policy answered {len(states)} states; get_initial_state() has {len(self.template)}")
        if self._fills:
            self._fill(tuple(states))
        return [as_array(leaf) for leaf in leaves_of(tuple(states), self.template)]

    def keep(self, leaves: Leaves) -> None:
        """These are the states behind a step."""
        self.leaves = leaves
        self._begun = set()

    def _fill(self, states: tuple[Any, ...]) -> None:
        """Take over what the first answer has in the place of empty nests; later ones have no more than that."""
        if not self._asked:
            self._asked, self.template = True, _filled(self._first, states)
            self._set_initial()
            self.leaves = [self._repeated(leaf) for leaf in self._initial]
        n_parts, known = len(leaves_of(states)), len(self._initial)
        if n_parts != known:
            raise ValueError(f"the policy answered states of {n_parts} arrays; after its first answer they had {known}")

    def _set_initial(self) -> None:
        self._initial: Leaves = leaves_of(self.template)

    def _repeated(self, leaf: Array) -> Array:
        return np.stack([leaf] * self._n)


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


def _filled(initial: Any, answered: Any) -> Any:
    """The initial states, with zeros like those answered in the place of empty nests."""
    if not isinstance(initial, dict | tuple):
        return initial
    if not initial:
        return map_nest(lambda leaf: np.zeros_like(as_array(leaf)[0]), answered)
    if isinstance(initial, dict):
        return {name: _filled(part, answered[name]) for name, part in initial.items()}
    return tuple(_filled(part, answered[i]) for i, part in enumerate(initial))
