"""PettingZoo's `ParallelEnv` for `TensorDictHost`, with one TensorDict per group of agents.

    adversary_0, agent_0, agent_1, referee  ──▶  "adversary" [1] · "agent" [2] · "referee" [1]

    {"agent": {"observation": [n, …], "mask": [n], "done": [n, 1], …}, …, "done": [1], …}

Agents that are not there have zeros. The flags of one that has ended stay set until the next reset.
An env is handed in, so that nothing of PettingZoo is imported here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase

from swath.keys import ACTION_MASK, FLAGS, NEXT, RESERVED, REWARD, STEP_COUNT, Key, as_tuple, is_private, nested
from swath.rollout.hosts.base import Make, TensorDictSpec
from swath.rollout.hosts.returned import bad_answer
from swath.rollout.hosts.tensordict import TensorDictHost
from swath.rollout.policies.random import RandomPolicy
from swath.rollout.spaces import Array, Leaf, action_leaves, observation_leaves, packer, splitter, structured

PRESENT = "mask"
"""Which agents of a group are there, `[…, n_agents]`."""

STEP = "a ParallelEnv has step(actions) -> observations, rewards, terminations, truncations, infos: dicts by agent"
RESET = "a ParallelEnv has reset(seed=None, options=None) -> observations, infos: dicts by agent"

_NUMBERED = re.compile(r"(.+)_\d+")
Space = spaces.Space[Any]
ByAgent: TypeAlias = Mapping[Any, Any]


def is_parallel_env(value: object, kind: str = "ParallelEnv") -> bool:
    """Whether this is a PettingZoo env whose agents act together."""
    zoo = sys.modules.get("pettingzoo.utils.env")  # where it was not imported there is none of its envs
    return zoo is not None and isinstance(value, getattr(zoo, kind))


def is_aec_env(value: object) -> bool:
    """Whether this is a PettingZoo env whose agents act in turn."""
    return is_parallel_env(value, "AECEnv")


class Group:
    """Agents with equal spaces.

    Args:
        name: the key under which their entries are.
        agents: their ids, in the order of the arrays.
        observation_space: of each of them.
        action_space: of each of them.

    Attributes:
        observation: leaves of one agent's observation.
        action: leaves of one agent's action.
        sample: draws random action leaves `[n_agents, …]`, given the action mask if there is one.

    Raises:
        TypeError: a space that is not served.
        ValueError: a name, of the group or of an entry, that has another meaning in a batch.
    """

    def __init__(self, name: str, agents: Sequence[Any], observation_space: Space, action_space: Space) -> None:
        self.name, self.agents = name, tuple(agents)
        self.observation, self.action = observation_leaves(observation_space), action_leaves(action_space)
        if name in RESERVED or is_private(name):
            raise ValueError(f"agents {list(agents)} form the group {name!r}, which no group can be called")
        if PRESENT in [leaf.key for leaf in self.observation]:
            raise ValueError(f"observations of {agents[0]!r} have an entry {PRESENT!r}; rename it in the env")
        self._pack = packer(self.observation)
        self._blank = structured(observation_space, (np.zeros(leaf.shape, leaf.dtype) for leaf in self.observation))
        self._split = splitter(action_space)
        self.sample = RandomPolicy().sampler(action_space, len(agents))

    def below(self, key: Key) -> Key:
        """The key of an entry of this group."""
        return (self.name, *as_tuple(key))

    def packed(self, observations: ByAgent) -> dict[str, Any]:
        """Entries `[n_agents, …]`; zeros for agents that have no observation."""
        seen = self._pack([observations.get(agent, self._blank) for agent in self.agents])
        return nested((leaf.key, torch.from_numpy(rows)) for leaf, rows in zip(self.observation, seen, strict=True))

    def actions(self, made: TensorDictBase, there: Collection[Any]) -> dict[Any, Any]:
        """The actions of agents that are there, of a TensorDict that a policy has written into."""
        each = self._split([self._read(made, leaf) for leaf in self.action])
        return {agent: action for agent, action in zip(self.agents, each, strict=True) if agent in there}

    def _read(self, made: TensorDictBase, leaf: Leaf) -> Any:
        key = self.below(leaf.key)
        value = made.get(key)
        got, wanted = tuple(value.shape), (len(self.agents), *leaf.shape)
        if got != wanted:
            raise ValueError(f"the policy's {key} has shape {got}; {len(self.agents)} agents want {wanted}")
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
        numbered = _NUMBERED.fullmatch(str(agent))
        named.setdefault(str(agent) if numbered is None else numbered[1], []).append(agent)
    groups: dict[str, Group] = {}
    for name, members in named.items():
        pairs = [(env.observation_space(agent), env.action_space(agent)) for agent in members]
        if all(pair == pairs[0] for pair in pairs) and (members == [name] or name not in members):
            groups[name] = Group(name, members, *pairs[0])
        else:  # they differ, or one of them has just that name
            groups |= {
                str(agent): Group(str(agent), [agent], *pair) for agent, pair in zip(members, pairs, strict=True)
            }
    if sum(len(group.agents) for group in groups.values()) < len(agents):
        raise ValueError(f"agents {[*agents]} form several groups of one name; rename them in the env")
    return tuple(groups.values())


class ZooHost(TensorDictHost):
    """A `ParallelEnv`.

    Args:
        env: the env.
        make: builds another one; `None` for an instance of the user's.
        max_steps: with so many steps all agents that are left are truncated; `None` for no limit, and no count.

    Raises:
        TypeError, ValueError: agents or spaces that are not served.
    """

    def __init__(self, env: Any, make: Make | None = None, max_steps: int | None = None) -> None:
        self._max_steps = max_steps
        self._groups = agent_groups(env)
        self._steps = 0
        self._there = set[Any]()
        self._terminated, self._truncated = set[Any](), set[Any]()
        kind = [(group.name, group.agents, group.observation, group.action) for group in self._groups]
        super().__init__(env, make, self._make_spec(), ("agents or spaces", kind))

    def begin(self, seeds: Sequence[int | None] | None) -> TensorDict:
        """Begin an episode."""
        answer = self.env.reset(seed=None if seeds is None else seeds[0])
        try:
            observations, _ = answer
            self._steps, self._there = 0, {*self.env.agents}
            self._terminated, self._truncated = set(), set()
            return self._root(observations)
        except Exception as error:
            raise bad_answer(error, self.env, RESET) from error

    def advance(self, root: TensorDictBase) -> tuple[TensorDictBase, TensorDict]:
        """Let the agents act that are there."""
        actions = [group.actions(root, self._there) for group in self._groups]
        answer = self.env.step({agent: action for each in actions for agent, action in each.items()})
        try:
            observations, rewards, terminations, truncations, _ = answer
            self._there = {*self.env.agents}
            self._note_ends(terminations, truncations)
            return root.set(NEXT, self._state(observations, rewards)), self._root(observations)
        except Exception as error:
            raise bad_answer(error, self.env, STEP) from error

    def rendered(self, env: int) -> Array | None:  # noqa: ARG002  there is one
        """A frame, if the env's `render_mode` is `"rgb_array"`."""
        drawn = getattr(self.env, "render_mode", None) == "rgb_array"
        return np.asarray(self.env.render()) if drawn else None

    def _make_spec(self) -> TensorDictSpec:
        groups = self._groups
        seen = [group.below(key) for group in groups for key in (*(leaf.key for leaf in group.observation), PRESENT)]
        return TensorDictSpec(
            num_envs=1,
            batch_shape=(),
            observed=(*seen, *(() if self._max_steps is None else (STEP_COUNT,))),
            acted=tuple(group.below(leaf.key) for group in groups for leaf in group.action),
            carried=(),
            rewarded=tuple(group.below(REWARD) for group in groups),
            done=FLAGS,
            flags=(*FLAGS, *(group.below(flag) for group in groups for flag in FLAGS)),
            draw=self._draw,
            imagine=self._imagined,
            env=lambda: self.env,
            seeding="episode",
        )

    def _note_ends(self, terminations: ByAgent, truncations: ByAgent) -> None:
        """Note who has ended with this step. An agent that is there again has not."""
        self._steps += 1
        self._terminated = self._terminated - self._there | {agent for agent, ended in terminations.items() if ended}
        self._truncated = self._truncated - self._there | {agent for agent, ended in truncations.items() if ended}
        if self._steps == self._max_steps:
            self._truncated |= self._there

    def _root(self, observations: ByAgent) -> TensorDict:
        """What the agents that are there see."""
        return self._state({agent: observations[agent] for agent in self._there})

    def _state(self, observations: ByAgent, rewards: ByAgent | None = None) -> TensorDict:
        """The env's state now, in memory of its own; with rewards, what a step led to."""
        terminated = not self._there and self._truncated <= self._terminated
        truncated = self._steps == self._max_steps or not (self._there or terminated)
        entries = _flags(torch.tensor([terminated]), torch.tensor([truncated]))
        for group in self._groups:
            there, ended, cut = (
                torch.tensor([agent in some for agent in group.agents])
                for some in (self._there, self._terminated, self._truncated)
            )
            own = group.packed(observations) | {PRESENT: there} | _flags(ended.unsqueeze(-1), cut.unsqueeze(-1))
            if rewards is not None:
                own[REWARD] = torch.tensor([[float(rewards.get(agent, 0.0))] for agent in group.agents])
            entries[group.name] = TensorDict(own, [len(there)])
        if self._max_steps is not None:
            entries[STEP_COUNT] = torch.tensor([self._steps])
        return TensorDict(entries, [])

    def _imagined(self) -> Any:
        return self._state({}).set(NEXT, self._state({}, {})).apply(torch.zeros_like)

    def _draw(self, root: TensorDictBase) -> TensorDictBase:
        for group in self._groups:
            drawn = group.sample(root.get(group.below(ACTION_MASK), None))
            for leaf, array in zip(group.action, drawn, strict=True):
                root.set(group.below(leaf.key), torch.from_numpy(array))
        return root


def _flags(terminated: torch.Tensor, truncated: torch.Tensor) -> dict[str, Any]:
    return dict(zip(FLAGS, (terminated | truncated, terminated, truncated), strict=True))
