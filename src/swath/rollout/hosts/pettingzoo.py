"""PettingZoo's `ParallelEnv` for `TensorDictHost`, with one TensorDict per group of agents.

    adversary_0, agent_0, agent_1, referee  ──▶  "adversary" [1] · "agent" [2] · "referee" [1]

    {"agent": {"observation": [n, …], "mask": [n], "done": [n, 1], …}, …, "done": [1], …}

Agents that are not there have zeros. The flags of one that has ended stay set until the next reset.
An env is handed in, so that nothing of PettingZoo is imported here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from math import hypot
from typing import Any, TypeAlias

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase

from swath.keys import ACTION_MASK, FLAGS, NEXT, RESERVED, REWARD, STEP_COUNT, Key, as_tuple, is_private, nested
from swath.rollout.hosts.base import TensorDictSpec
from swath.rollout.hosts.returned import LARGEST_REWARD, bad_answer, rewards_of
from swath.rollout.random_policy import RandomPolicy
from swath.rollout.spaces import Array, action_leaves, observation_leaves, packer, splitter, structured

# Which agents of a group are there, `[…, n_agents]`.
PRESENT = "mask"

STEP = "a ParallelEnv has step(actions) -> observations, rewards, terminations, truncations, infos: dicts by agent"

_NUMBERED = re.compile(r"(.+)_\d+")
ByAgent: TypeAlias = Mapping[Any, Any]


def is_parallel_env(value: object, kind: str = "ParallelEnv") -> bool:
    """Whether this is a PettingZoo env whose agents act together; an `"AECEnv"` is one whose agents act in turn."""
    zoo = sys.modules.get("pettingzoo.utils.env")  # where it was not imported there is none of its envs
    return zoo is not None and isinstance(value, getattr(zoo, kind))


class Group:
    """Agents with equal spaces.

    Args:
        name: the key under which their entries are.
        agents: their ids, in the order of the arrays.
        seen: the observation space of each of them.
        acted: the action space of each of them.
        keep_float64: observations of float64 stay float64.

    Attributes:
        observation: leaves of one agent's observation.
        action: leaves of one agent's action.
        pack: one array `[n_agents, …]` per leaf, of their observations.
        blank: the observation of an agent that has none, zeros.
        sample: draws actions of all of them, given their mask.

    Raises:
        TypeError: a space that is not served.
        ValueError: a name, of the group or of an entry, that has another meaning in a batch.
    """

    def __init__(
        self,
        name: str,
        agents: Sequence[Any],
        seen: spaces.Space[Any],
        acted: spaces.Space[Any],
        *,
        keep_float64: bool = False,
    ) -> None:
        self.name, self.agents = name, tuple(agents)
        self.observation, self.action = observation_leaves(seen, keep_float64=keep_float64), action_leaves(acted)
        if name in RESERVED or is_private(name):
            raise ValueError(f"agents {list(agents)} form the group {name!r}, which no group can be called")
        if PRESENT in [leaf.key for leaf in self.observation]:
            raise ValueError(f"observations of {agents[0]!r} have an entry {PRESENT!r}; rename it in the env")
        self.pack, self._split = packer(self.observation), splitter(acted)
        self.blank = structured(seen, (np.zeros(leaf.shape, leaf.dtype) for leaf in self.observation))
        self.sample = RandomPolicy().sampler(acted, len(agents))

    def actions(self, made: TensorDictBase) -> zip[tuple[Any, Any]]:
        """Each agent with its action, of a TensorDict that a policy has written into."""
        leaves = [made.get((self.name, *as_tuple(leaf.key))).numpy(force=True) for leaf in self.action]
        for leaf, given in zip(self.action, leaves, strict=True):
            if given.shape != (wanted := (len(self.agents), *leaf.shape)):
                key = (self.name, *as_tuple(leaf.key))
                raise ValueError(f"the policy's {key} has shape {given.shape}; {len(self.agents)} agents want {wanted}")
        return zip(self.agents, self._split(leaves), strict=True)


def agent_groups(env: Any, *, keep_float64: bool = False) -> tuple[Group, ...]:
    """The groups of an env's agents: those called `name_<int>` with equal spaces are `name`, any other is its own.

    Raises:
        TypeError: the env has no `possible_agents`, or a space that is not served.
        ValueError: a group whose name, or an entry of which, has another meaning in a batch.
    """
    agents = getattr(env, "possible_agents", None)
    if not agents:
        raise TypeError(f"{env} has no possible_agents; a collector must know all that may appear")
    named: dict[str, list[Any]] = {}
    for agent in agents:
        numbered = _NUMBERED.fullmatch(str(agent))
        named.setdefault(str(agent) if numbered is None else numbered[1], []).append(agent)
    groups: dict[str, Group] = {}
    for name, members in named.items():
        pairs = [(env.observation_space(agent), env.action_space(agent)) for agent in members]
        together = all(pair == pairs[0] for pair in pairs) and (members == [name] or name not in members)
        # Each alone where they differ, or where one has just that name.
        parts = {name: members} if together else {str(agent): [agent] for agent in members}
        for own, part in parts.items():
            groups[own] = Group(own, part, *pairs[members.index(part[0])], keep_float64=keep_float64)
    if sum(len(group.agents) for group in groups.values()) < len(agents):
        raise ValueError(f"agents {[*agents]} form several groups of one name; rename them in the env")
    return tuple(groups.values())


class ZooEnv:
    """A `ParallelEnv`.

    Args:
        env: the env.
        max_steps: with so many steps all agents that are left are truncated; `None` for no limit, and no count.
        keep_float64: observations of float64 stay float64.

    Attributes:
        env: the env.
        spec: what it looks like.
        kind: in what envs side by side must agree: its name, and its value.
        resets: episodes that end do not begin anew by themselves.

    Raises:
        TypeError, ValueError: agents or spaces that are not served.
    """

    resets = False

    def __init__(self, env: Any, max_steps: int | None = None, *, keep_float64: bool = False) -> None:
        self.env, self.close, self._max_steps = env, env.close, max_steps
        groups = self._groups = agent_groups(env, keep_float64=keep_float64)
        self.kind = ("agents or spaces", [(each.name, each.agents, each.observation, each.action) for each in groups])
        seen = [(g.name, *as_tuple(key)) for g in groups for key in (*(leaf.key for leaf in g.observation), PRESENT)]
        observed = (*seen, *(() if max_steps is None else (STEP_COUNT,)))
        acted = tuple((group.name, *as_tuple(leaf.key)) for group in groups for leaf in group.action)
        rewarded = tuple((group.name, REWARD) for group in groups)
        flags: tuple[Key, ...] = (*FLAGS, *((group.name, flag) for group in groups for flag in FLAGS))
        self.spec = TensorDictSpec(1, (), observed, acted, rewarded, FLAGS, flags, alone=False)

    def begin(self, seeds: Sequence[int | None] | None) -> TensorDict:
        """Begin an episode: the root."""
        observations, _ = self.env.reset(seed=None if seeds is None else seeds[0])
        self._steps, self._there = 0, {*self.env.agents}
        self._terminated, self._truncated = set[Any](), set[Any]()
        return self._state(observations)

    def begin_in(self, root: TensorDictBase, envs: Sequence[int]) -> TensorDict:  # noqa: ARG002  there is one
        """Begin an episode: the root."""
        return self.begin(None)

    def advance(self, root: TensorDictBase) -> tuple[TensorDictBase, TensorDict]:
        """Let the agents act that are there: the root with `"next"`, and the root of the next step."""
        actions = [pair for group in self._groups for pair in group.actions(root) if pair[0] in self._there]
        answer = self.env.step(dict(actions))
        try:
            observations, rewards, terminations, truncations, _ = answer
            self._steps, self._there = self._steps + 1, {*self.env.agents}
            for over, flags in ((self._terminated, terminations), (self._truncated, truncations)):
                over.difference_update(self._there)  # an agent that is there again has not ended
                over.update(agent for agent, flag in flags.items() if flag)
            if self._steps == self._max_steps:
                self._truncated |= self._there
            following = self._state(observations, rewards)
            return root.set(NEXT, following), self._state({agent: observations[agent] for agent in self._there})
        except Exception as error:
            raise bad_answer(error, self.env, STEP) from error

    def draw(self, root: TensorDictBase) -> TensorDictBase:
        """Write random actions into a root, which obey the masks of groups that have one."""
        for group in self._groups:
            drawn = group.sample(root.get((group.name, ACTION_MASK), None))
            for leaf, array in zip(group.action, drawn, strict=True):
                root.set((group.name, *as_tuple(leaf.key)), torch.from_numpy(array))
        return root

    def imagine(self) -> Any:
        """A TensorDict of zeros as a step leaves it, without what the policy writes."""
        return self._state({}).set(NEXT, self._state({}, {})).apply(torch.zeros_like)

    def rendered(self, env: int) -> Array | None:  # noqa: ARG002  there is one
        """A frame, if the env's `render_mode` is `"rgb_array"`."""
        drawn = getattr(self.env, "render_mode", None) == "rgb_array"
        return np.asarray(self.env.render()) if drawn else None

    def _state(self, observations: ByAgent, rewards: ByAgent | None = None) -> TensorDict:
        """The env's state now, in memory of its own; with rewards, what a step led to."""
        terminated = not self._there and self._truncated <= self._terminated
        truncated = self._steps == self._max_steps or not (self._there or terminated)
        entries = _flags(torch.tensor([terminated]), torch.tensor([truncated]))
        for group in self._groups:
            sets, agents = (self._there, self._terminated, self._truncated), group.agents
            there, ended, cut = (torch.tensor([[agent in some] for agent in agents]) for some in sets)
            seen = zip(group.observation, group.pack([observations.get(a, group.blank) for a in agents]), strict=True)
            own = nested((leaf.key, torch.from_numpy(rows)) for leaf, rows in seen)
            own |= {PRESENT: there.squeeze(-1)} | _flags(ended, cut)
            if rewards is not None:
                amounts = [float(rewards.get(agent, 0.0)) for agent in agents]
                if not hypot(*amounts) <= LARGEST_REWARD:
                    for agent, reward in zip(agents, amounts, strict=True):
                        rewards_of(reward, 1, f" of agent {agent!r}")
                own[REWARD] = torch.tensor(amounts).unsqueeze(-1)
            entries[group.name] = TensorDict(own, [len(agents)])
        if self._max_steps is not None:
            entries[STEP_COUNT] = torch.tensor([self._steps])
        return TensorDict(entries, [])


def _flags(terminated: torch.Tensor, truncated: torch.Tensor) -> dict[str, Any]:
    return dict(zip(FLAGS, (terminated | truncated, terminated, truncated), strict=True))
