"""PettingZoo's `ParallelEnv`s in env processes.

    root ─▶ actions of agents ─▶ ProcessHost ─▶ ZooEntries in each process ─▶ entries under "next" ─▶ TensorDicts

A process steps its envs as one process would, and sends every entry of a step as an array. The driver makes TensorDicts
of them: `"next"`, and the root of the next step, in which agents that have left have zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict

from swath.keys import NEXT, REWARD, as_key, as_tuple, nest_entries
from swath.rollout.hosts.base import ArrayHost, ArraySpec, Ends, Transition
from swath.rollout.hosts.parallel import ProcessHost
from swath.rollout.hosts.pettingzoo import PRESENT, ZooEnv
from swath.rollout.hosts.tensordict import TensorDictHost
from swath.rollout.spaces import Array, Leaves, unbounded_leaf


class ZooEntries(ArrayHost):
    """The envs of one process, of whose steps every entry under `"next"` is a leaf `[B, …]`.

    Args:
        envs: the envs.
    """

    spec: ArraySpec

    def __init__(self, envs: Sequence[ZooEnv]) -> None:
        super().__init__(envs, None)
        self._host = TensorDictHost(envs, None, separate=True)
        zeros, zoo = self._host.zero_step().get(NEXT), envs[0].env
        self._zeros = {
            as_key(as_tuple(key)): value for key, value in zeros.items(include_nested=True, leaves_only=True)
        }
        self.spec = ArraySpec(
            len(envs),
            (len(envs),),
            observation=tuple(
                unbounded_leaf(key, value[0].shape, value.numpy().dtype) for key, value in self._zeros.items()
            ),
            action=tuple(
                unbounded_leaf((group.name, *as_tuple(leaf.key)), (len(group.agents), *leaf.shape), leaf.dtype)
                for group in envs[0].groups
                for leaf in group.action
            ),
            observation_space=spaces.Dict({str(agent): zoo.observation_space(agent) for agent in zoo.possible_agents}),
            action_space=spaces.Dict({str(agent): zoo.action_space(agent) for agent in zoo.possible_agents}),
            library="pettingzoo",
        )
        self._leaves = self._leaves_of(zeros)

    @property
    def env(self) -> Any:
        """Return a list of the PettingZoo envs."""
        return self._host.env

    def reset_all(self, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in every env."""
        return self._leaves_of(self._host.reset_all(seeds)[0])

    def reset(self, envs: Sequence[int], base: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs, and return a copy of `base` with their first entries as rows."""
        rows = self._leaves_of(self._host.reset(envs, [None], seeds)[0])
        observation = [leaf.copy() for leaf in base]
        for leaf, row in zip(observation, rows, strict=True):
            leaf[envs] = row[envs]
        return observation

    def step(self, action: Leaves, only: int | None = None) -> Transition:
        """Step every env that is not retired, or the env `only`."""
        pairs = zip(self.spec.action, map(torch.from_numpy, action), strict=True)
        root: Leaves = [TensorDict(nest_entries((leaf.key, tensor) for leaf, tensor in pairs), [self.spec.num_envs])]
        transition = self._host.step(root, only)
        if (next_td := root[0].get(NEXT, None)) is not None:
            self._leaves = self._leaves_of(next_td)
        return replace(transition, observation=self._leaves)

    def retire(self, envs: Sequence[int]) -> None:
        """Stop stepping these envs."""
        self._host.retire(envs)

    def render(self, env: int) -> Array | None:
        """Return a frame of this env, or `None`."""
        return self._host.render(env)

    def info_of(self, env: int) -> Mapping[str, Any]:  # noqa: ARG002
        """Return no infos: batches of agents have none."""
        return {}

    def _leaves_of(self, td: Any) -> Leaves:
        return [td.get(key, zeros).numpy() for key, zeros in self._zeros.items()]


class ZooProcesses(TensorDictHost):
    """`ParallelEnv`s in env processes.

    Args:
        stand_in: a `ParallelEnv` that is not stepped: it knows agents and spaces, and draws random actions.
        processes: the envs.
    """

    def __init__(self, stand_in: ZooEnv, processes: ProcessHost) -> None:
        n = processes.spec.num_envs
        super().__init__([stand_in] * n, None, separate=True)
        self._processes, self._stand_in = processes, stand_in
        self._keys = [*map(as_tuple, processes.spec.observation_keys)]
        observed = {(group.name, *as_tuple(leaf.key)) for group in stand_in.groups for leaf in group.observation}
        # Of each leaf, the place of the mask of agents that are present; `None` if absent ones do not have zeros.
        self._masks = [self._keys.index((key[0], PRESENT)) if key in observed else None for key in self._keys]
        self._root_leaves, self._next_td = Leaves(), TensorDict()

    @property
    def env(self) -> Any:
        """Return an object with the properties of the envs."""
        return self._processes.env

    def reset_all(self, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in every env, in a new process if theirs is lost."""
        self._retired.clear()
        self._root_leaves = self._processes.reset_all(seeds)
        return [self._root()]

    def reset(self, envs: Sequence[int], base: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:  # noqa: ARG002
        """Begin an episode in these envs."""
        self._root_leaves = self._processes.reset(envs, self._root_leaves, seeds)
        return [self._root()]

    def step(self, action: Leaves, only: int | None = None) -> Transition:
        """Step every env that is not retired, or the env `only`.

        Args:
            action: the TensorDict that the policy has written into.
            only: index of an env.
        """
        root, n = action[0], self.spec.num_envs
        try:
            actions = [leaf for group in self._stand_in.groups for leaf in group.action_leaves(root, (n,))]
        except Exception as error:  # noqa: BLE001  `Transition.failed` has it, with its type
            return Transition([], np.zeros(n), failed=[(env, self.explain(root, error)) for env in range(n)])
        transition = self._processes.step(actions, only)
        failed = transition.failed
        if len(failed) == n:
            return Transition([], np.zeros(n), failed=failed)
        self._next_td = self._td(zip(self._keys, transition.observation, strict=True))
        self._root_leaves = self._without_absent(transition.observation)
        action[0] = root.set(NEXT, self._next_td)
        idle = self._retired if only is None else {*range(n)} - {only}
        ends: Ends = self.reader.ends(self._next_td).without([*idle, *dict(failed)])
        return Transition([self._root()], self.reader.reward(self._next_td), ends, (), failed, [{}] * n)

    def retire(self, envs: Sequence[int]) -> None:
        """Stop stepping these envs until `reset_all`."""
        super().retire(envs)
        self._processes.retire(envs)

    def render(self, env: int) -> Array | None:
        """Return a frame of this env, or `None`."""
        return self._processes.render(env)

    def seed_of(self, env: int) -> int | None:
        """Return the last seed of this env, or `None`."""
        return self._processes.seed_of(env)

    def rebuild(self) -> Leaves:
        """End all processes, begin others, and an episode in every env.

        Raises:
            EnvRaised: building or resetting an env failed.
        """
        self._root_leaves = self._processes.rebuild()
        return [self._root()]

    def close(self) -> None:
        """Close every env, and end the processes."""
        self._processes.close()

    def _without_absent(self, leaves: Leaves) -> Leaves:
        """Return leaves with zeros as observations of agents that are absent."""
        return [
            leaf if at is None else np.where(leaves[at].reshape(*leaves[at].shape, *[1] * (leaf.ndim - 2)), leaf, 0)
            for leaf, at in zip(leaves, self._masks, strict=True)
        ]

    def _root(self) -> TensorDict:
        """Return the root of the next step in new memory."""
        pairs = zip(self._keys, self._root_leaves, strict=True)
        return self._td([(key, leaf.copy()) for key, leaf in pairs if key[-1] != REWARD])

    def _td(self, entries: Iterable[tuple[tuple[str, ...], Array]]) -> TensorDict:
        """Return entries as a TensorDict `[B]`, with a TensorDict `[B, n_agents]` per group."""
        root, groups = nest_entries((key, torch.from_numpy(array)) for key, array in entries), self._stand_in.groups
        n = self.spec.num_envs
        root |= {group.name: TensorDict(root[group.name], [n, len(group.agents)]) for group in groups}
        return TensorDict(root, [n])
