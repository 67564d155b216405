"""Agents of a PettingZoo env in groups, each of which has its entries in common.

adversary_0, agent_0, agent_1, referee  ──▶  "adversary" [1] · "agent" [2] · "referee" [1]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDictBase

from swath.keys import ACTION_MASK, RESERVED, Key, as_tuple, is_private
from swath.rollout.policies.random_policy import RandomPolicy
from swath.rollout.spaces import Leaf, Leaves, action_leaves, observation_leaves, packer, splitter

PRESENT = "mask"
"""Which agents of a group are there, `[…, n_agents]`."""

_NUMBERED = re.compile(r"(.+)_\d+")
Space = spaces.Space[Any]


@dataclass(frozen=True)
class Group:
    """Agents with equal spaces.

    Attributes:
        name: the key under which their entries are.
        agents: their ids, in the order of the arrays.
        observation_space: of each of them.
        action_space: of each of them.
    """

    name: str
    agents: tuple[Any, ...]
    observation_space: Space
    action_space: Space

    def __post_init__(self) -> None:
        if self.name in RESERVED or is_private(self.name):
            raise ValueError(f"agents {list(self.agents)} form the group {self.name!r}, which no group can be called")
        if PRESENT in [leaf.key for leaf in self.observation]:
            raise ValueError(f"observations of {self.agents[0]!r} have an entry {PRESENT!r}; rename it in the env")

    @cached_property
    def observation(self) -> tuple[Leaf, ...]:
        """Leaves of one agent's observation."""
        return observation_leaves(self.observation_space)

    @cached_property
    def action(self) -> tuple[Leaf, ...]:
        """Leaves of one agent's action."""
        return action_leaves(self.action_space)

    def below(self, key: Key) -> Key:
        """The key of an entry of this group."""
        return (self.name, *as_tuple(key))

    def packed(self, observations: Mapping[Any, Any]) -> dict[Key, torch.Tensor]:
        """Entries `[n_agents, …]`; zeros for agents that have no observation."""
        rows = [row for row, agent in enumerate(self.agents) if agent in observations]
        arrays = [np.zeros((len(self.agents), *leaf.shape), leaf.dtype) for leaf in self.observation]
        if rows:
            values = self._pack([observations[self.agents[row]] for row in rows])
            for array, value in zip(arrays, values, strict=True):
                array[rows] = value
        return {leaf.key: torch.from_numpy(array) for leaf, array in zip(self.observation, arrays, strict=True)}

    def actions(self, made: TensorDictBase, present: Collection[Any]) -> dict[Any, Any]:
        """The actions of agents that are there, of a TensorDict that a policy has written into."""
        each = self._split([self._read(made, leaf) for leaf in self.action])
        return {agent: action for agent, action in zip(self.agents, each, strict=True) if agent in present}

    def draw(self, root: TensorDictBase) -> None:
        """Write random actions that obey the group's action mask, if it has one."""
        drawn = self._sample(root.get(self.below(ACTION_MASK), None))
        for leaf, array in zip(self.action, drawn, strict=True):
            root.set(self.below(leaf.key), torch.from_numpy(array))

    @cached_property
    def _pack(self) -> Callable[[Sequence[Any]], Leaves]:
        return packer(self.observation)

    @cached_property
    def _split(self) -> Callable[[Leaves], Sequence[Any]]:
        return splitter(self.action_space, len(self.agents))

    @cached_property
    def _sample(self) -> Callable[[torch.Tensor | None], Leaves]:
        return RandomPolicy().sampler(self.action_space, len(self.agents))

    def _read(self, made: TensorDictBase, leaf: Leaf) -> Any:
        key, wanted = self.below(leaf.key), (len(self.agents), *leaf.shape)
        value = made.get(key, None)
        if value is None:
            there = sorted(map(str, made.keys(include_nested=True)))
            raise KeyError(f"the policy must answer with the action {key}; the entries are {there}")
        if tuple(value.shape) != wanted:
            raise ValueError(
                f"the policy's {key} has shape {tuple(value.shape)} in one env; {len(self.agents)} agents with "
                f"{leaf.space} want {wanted}"
            )
        return value.detach().cpu().numpy()


def agent_groups(env: Any) -> tuple[Group, ...]:
    """The groups of an env's agents: those called `name_<int>` with equal spaces are `name`, any other is its own.

    Raises:
        TypeError: the env does not say beforehand who its agents may be, or a space that is not served.
        ValueError: a group whose name, or an entry of which, has another meaning in a batch.
    """
    agents = getattr(env, "possible_agents", None)
    if not agents:
        raise TypeError(f"{env} has no possible_agents; a collector must know beforehand whom there is room for")
    named: dict[str, list[Any]] = {}
    for agent in agents:
        named.setdefault(_name_of(agent), []).append(agent)
    groups = tuple(group for name, members in named.items() for group in _grouped(env, name, members))
    if len({group.name for group in groups}) < len(groups):
        raise ValueError(f"agents {[*agents]} form several groups of one name: {[group.name for group in groups]}")
    return groups


def _name_of(agent: Any) -> str:
    numbered = _NUMBERED.fullmatch(str(agent))
    return str(agent) if numbered is None else numbered[1]


def _grouped(env: Any, name: str, members: Sequence[Any]) -> list[Group]:
    """One group of all who share the name, or one of each where they differ or one has just that name."""
    pairs = [(env.observation_space(agent), env.action_space(agent)) for agent in members]
    alike = all(pair == pairs[0] for pair in pairs)
    if alike and (len(members) == 1 or name not in map(str, members)):
        return [Group(name, tuple(members), *pairs[0])]
    return [Group(str(agent), (agent,), *pair) for agent, pair in zip(members, pairs, strict=True)]
