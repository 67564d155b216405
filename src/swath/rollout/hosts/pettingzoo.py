"""PettingZoo's `ParallelEnv` for `TensorDictHost`, with one TensorDict per group of agents.

    adversary_0, agent_0, agent_1, referee  ──▶  "adversary" [1] · "agent" [2] · "referee" [1]

    {"agent": {"observation": [n, …], "mask": [n], "done": [n, 1], …}, …, "done": [1], …}

Absent agents have zeros. The flags of an agent that has ended stay set until the next reset. PettingZoo is not imported
here: the user brings the env.
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

from swath.keys import ACTION_MASK, FLAGS, NEXT, RESERVED, REWARD, STEP_COUNT, as_tuple, is_private, nest_entries
from swath.rollout.hosts.base import TensorDictSpec
from swath.rollout.hosts.results import LARGEST_REWARD, bad_answer, rewards_of
from swath.rollout.random_policy import RandomPolicy
from swath.rollout.spaces import Array, Leaves, action_leaves, build_value, observation_leaves, packer, splitter

# The mask of agents that are present, `[…, n_agents]`.
PRESENT = "mask"

STEP = "a ParallelEnv has step(actions) -> observations, rewards, terminations, truncations, infos: dicts by agent"

_NUMBERED = re.compile(r"(.+)_\d+")
ByAgent: TypeAlias = Mapping[Any, Any]


def is_parallel_env(value: object, kind: str = "ParallelEnv") -> bool:
    """Tell whether an object is a PettingZoo env whose agents act together, or an `"AECEnv"`, where they take turns."""
    zoo = sys.modules.get("pettingzoo.utils.env")  # `None`: no env of PettingZoo exists
    return zoo is not None and isinstance(value, getattr(zoo, kind))


class Group:
    """Agents with equal spaces.

    Args:
        name: the key of their entries.
        agents: their ids, in the order of the arrays.
        observation_space: the observation space of each agent.
        action_space: the action space of each agent.
        keep_float64: observations of float64 stay float64.

    Attributes:
        observation: leaves of one agent's observation.
        action: leaves of one agent's action.
        pack: turns a list of observations into one array `[n_agents, …]` per leaf.
        blank: the observation of an absent agent, zeros.
        sample: draws actions of all agents, given their mask.

    Raises:
        TypeError: a space that is not served.
        ValueError: a name, of the group or of an entry, that has another meaning in a batch.
    """

    def __init__(
        self,
        name: str,
        agents: Sequence[Any],
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        keep_float64: bool = False,
    ) -> None:
        self.name, self.agents = name, tuple(agents)
        self.observation = observation_leaves(observation_space, keep_float64=keep_float64)
        self.action = action_leaves(action_space)
        if name in RESERVED or is_private(name):
            raise ValueError(f"agents {list(agents)} form the group {name!r}, which no group can be called")
        if PRESENT in [leaf.key for leaf in self.observation]:
            raise ValueError(f"observations of {agents[0]!r} have an entry {PRESENT!r}; rename it in the env")
        self.pack, self._split = packer(self.observation), splitter(action_space)
        self.blank = build_value(observation_space, (np.zeros(leaf.shape, leaf.dtype) for leaf in self.observation))
        self.sample = RandomPolicy().sampler(action_space, len(agents))

    def actions(self, root: TensorDictBase) -> zip[tuple[Any, Any]]:
        """Return pairs of agent and action, from a TensorDict that a policy has written into."""
        return zip(self.agents, self._split(self.action_leaves(root)), strict=True)

    def action_leaves(self, root: TensorDictBase, batch_shape: tuple[int, ...] = ()) -> Leaves:
        """Return the actions that a policy has written into a TensorDict, one array `[*B, n_agents, …]` per leaf.

        Raises:
            AttributeError: an action is missing.
            ValueError: an action of another shape.
        """
        leaves = [root.get((self.name, *as_tuple(leaf.key))).numpy(force=True) for leaf in self.action]
        for leaf, array in zip(self.action, leaves, strict=True):
            if array.shape != (needed := (*batch_shape, len(self.agents), *leaf.shape)):
                key = (self.name, *as_tuple(leaf.key))
                raise ValueError(f"the policy's {key} has shape {array.shape}; {len(self.agents)} agents want {needed}")
        return leaves


def agent_groups(env: Any, *, keep_float64: bool = False) -> tuple[Group, ...]:
    """Return the groups of an env's agents: agents `name_<int>` with equal spaces form `name`, others one group each.

    Raises:
        TypeError: the env has no `possible_agents`, or a space that is not served.
        ValueError: a group whose name, or an entry of which, has another meaning in a batch.
    """
    agents = getattr(env, "possible_agents", None)
    if not agents:
        raise TypeError(f"{env} has no possible_agents; a collector must know all that may appear")
    by_name: dict[str, list[Any]] = {}
    for agent in agents:
        numbered = _NUMBERED.fullmatch(str(agent))
        by_name.setdefault(str(agent) if numbered is None else numbered[1], []).append(agent)
    groups: dict[str, Group] = {}
    for name, members in by_name.items():
        pairs = [(env.observation_space(agent), env.action_space(agent)) for agent in members]
        is_group = all(pair == pairs[0] for pair in pairs) and (members == [name] or name not in members)
        # Agents that differ form a group each, and so do agents whose name another agent has without a number.
        parts = {name: members} if is_group else {str(agent): [agent] for agent in members}
        for group, part in parts.items():
            groups[group] = Group(group, part, *pairs[members.index(part[0])], keep_float64=keep_float64)
    if sum(len(group.agents) for group in groups.values()) < len(agents):
        raise ValueError(f"agents {[*agents]} form several groups of one name; rename them in the env")
    return tuple(groups.values())


class ZooEnv:
    """A `ParallelEnv`.

    Args:
        env: the env.
        max_steps: step limit, at which all remaining agents are truncated; `None` for no limit, and no step count.
        keep_float64: observations of float64 stay float64.

    Attributes:
        env: the env.
        groups: of agents with equal spaces.
        spec: properties of the env.
        kind: name and value of a property that must be equal in all envs of a host.
        autoresets: a step does not reset episodes that end.

    Raises:
        TypeError, ValueError: agents or spaces that are not served.
    """

    autoresets = False

    def __init__(self, env: Any, max_steps: int | None = None, *, keep_float64: bool = False) -> None:
        self.env, self.close, self._max_steps = env, env.close, max_steps
        groups = self.groups = agent_groups(env, keep_float64=keep_float64)
        self._steps, self._present = 0, set[Any]()
        self._terminated, self._truncated = set[Any](), set[Any]()
        self.kind = ("agents or spaces", [(g.name, g.agents, g.observation, g.action) for g in groups])
        self.spec = TensorDictSpec(
            1,
            (),
            observation_keys=(
                *((g.name, *as_tuple(key)) for g in groups for key in (*(leaf.key for leaf in g.observation), PRESENT)),
                *(() if max_steps is None else (STEP_COUNT,)),
            ),
            action_keys=tuple((g.name, *as_tuple(leaf.key)) for g in groups for leaf in g.action),
            reward_keys=tuple((g.name, REWARD) for g in groups),
            done_keys=FLAGS,
            all_done_keys=(*FLAGS, *((g.name, flag) for g in groups for flag in FLAGS)),
            steps_singly=False,
            library="pettingzoo",
        )

    def reset(self, seeds: Sequence[int | None] | None) -> TensorDict:
        """Begin an episode and return the root."""
        observations, _ = self.env.reset(seed=None if seeds is None else seeds[0])
        self._steps, self._present = 0, {*self.env.agents}
        self._terminated, self._truncated = set[Any](), set[Any]()
        return self._state(observations)

    def reset_some(self, root: TensorDictBase, envs: Sequence[int]) -> TensorDict:  # noqa: ARG002  a single env
        """Begin an episode and return the root."""
        return self.reset(None)

    def step(self, root: TensorDictBase) -> tuple[TensorDictBase, TensorDict]:
        """Step with the actions of present agents; return the root with `"next"` and the root of the next step."""
        actions = [pair for group in self.groups for pair in group.actions(root) if pair[0] in self._present]
        returned = self.env.step(dict(actions))
        try:
            observations, rewards, terminations, truncations, _ = returned
            self._steps, self._present = self._steps + 1, {*self.env.agents}
            for ended, flags in ((self._terminated, terminations), (self._truncated, truncations)):
                ended.difference_update(self._present)  # an agent that has returned has not ended
                ended.update(agent for agent, flag in flags.items() if flag)
            if self._steps == self._max_steps:
                self._truncated |= self._present
            next_td = self._state(observations, rewards)
            return root.set(NEXT, next_td), self._state({agent: observations[agent] for agent in self._present})
        except Exception as error:
            raise bad_answer(error, self.env, STEP) from error

    def draw(self, root: TensorDictBase) -> TensorDictBase:
        """Write random actions into a root, which obey the action masks of groups."""
        for group in self.groups:
            actions = group.sample(root.get((group.name, ACTION_MASK), None))
            for leaf, array in zip(group.action, actions, strict=True):
                root.set((group.name, *as_tuple(leaf.key)), torch.from_numpy(array))
        return root

    def zero_step(self) -> Any:
        """Return a TensorDict of zeros with the entries of a step, except those that the policy writes."""
        return self._state({}).set(NEXT, self._state({}, {})).apply(torch.zeros_like)

    def render(self, env: int) -> Array | None:  # noqa: ARG002  a single env
        """Return a frame, if the env's `render_mode` is `"rgb_array"`."""
        renders = getattr(self.env, "render_mode", None) == "rgb_array"
        return np.asarray(self.env.render()) if renders else None

    def _state(self, observations: ByAgent, rewards: ByAgent | None = None) -> TensorDict:
        """Return the entries of the env's state in new memory; of `"next"` if there are rewards."""
        is_terminated = not self._present and self._truncated <= self._terminated
        is_truncated = self._steps == self._max_steps or not (self._present or is_terminated)
        entries = _flags(torch.tensor([is_terminated]), torch.tensor([is_truncated]))
        for group in self.groups:
            sets, agents = (self._present, self._terminated, self._truncated), group.agents
            present, terminated, truncated = (torch.tensor([[agent in ids] for agent in agents]) for ids in sets)
            leaves = group.pack([observations.get(agent, group.blank) for agent in agents])
            pairs = zip(group.observation, leaves, strict=True)
            group_entries = nest_entries((leaf.key, torch.from_numpy(rows)) for leaf, rows in pairs)
            group_entries |= {PRESENT: present.squeeze(-1)} | _flags(terminated, truncated)
            if rewards is not None:
                amounts = [float(rewards.get(agent, 0.0)) for agent in agents]
                if not hypot(*amounts) <= LARGEST_REWARD:
                    for agent, reward in zip(agents, amounts, strict=True):
                        rewards_of(reward, 1, f" of agent {agent!r}")
                group_entries[REWARD] = torch.tensor(amounts).unsqueeze(-1)
            entries[group.name] = TensorDict(group_entries, [len(agents)])
        if self._max_steps is not None:
            entries[STEP_COUNT] = torch.tensor([self._steps])
        return TensorDict(entries, [])


def _flags(terminated: torch.Tensor, truncated: torch.Tensor) -> dict[str, Any]:
    return dict(zip(FLAGS, (terminated | truncated, terminated, truncated), strict=True))
