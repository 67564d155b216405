"""The host for several TensorDict envs side by side, each of which can be reset, seeded and left alone by itself.

[root] × B ──▶ stacked [B] ──▶ policy writes ──▶ row by row: each env's own host ──▶ "next" and roots stacked [B]

A batched env of TorchRL's takes one seed for all and steps all; where each episode has its own seed, and envs stand
still that have none left to play, envs are kept apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor

from swath.keys import NEXT, Key, as_key, as_tuple
from swath.rollout.hosts.base import Ended, EnvRaised, Transition
from swath.rollout.hosts.parallel_env import ParallelEnvHost
from swath.rollout.hosts.specs import TensorDictSpec
from swath.rollout.hosts.torchrl import TorchRLHost
from swath.rollout.spaces import Array, Leaves

Single = TorchRLHost | ParallelEnvHost
"""A host of one env."""


class TensorDictListHost:
    """B envs of one kind, none of them a batch.

    Args:
        hosts: one per env.

    Raises:
        ValueError: an env that is a batch, or that writes other entries than the first.
    """

    def __init__(self, hosts: Sequence[Single]) -> None:
        self._hosts = list(hosts)
        _require_alike(self._hosts)
        n = len(self._hosts)
        self.spec = replace(
            self._hosts[0].spec,
            num_envs=n,
            batch_shape=(n,),
            draw=self._draw,
            imagine=lambda: _stacked([host.spec.imagine() for host in self._hosts]),
            env=lambda: self._hosts[0].env,
            alone=True,
            seeding="episode",
        )
        self._carried: list[Key] = []
        self._roots: list[TensorDictBase] = []
        self._nexts: list[TensorDictBase | None] = [None] * n
        self._retired: set[int] = set()

    @property
    def env(self) -> list[Any]:
        """The envs."""
        return [host.env for host in self._hosts]

    def reset_all(self, seeds: Sequence[int] | None = None) -> Leaves:
        """Begin an episode in every env, also in retired ones."""
        self._retired.clear()
        begun = [self._begun(env, None if seeds is None else seeds[env]) for env in range(len(self._hosts))]
        self._carried = _keys_of(begun[0])
        self._roots = [self._kept(root) for root in begun]
        return [_stacked(self._roots)]

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:  # noqa: ARG002
        """Begin an episode in these envs, all of it anew."""
        for place, env in enumerate(envs):
            self._roots[env] = self._kept(self._begun(env, None if seeds is None else seeds[place]))
        return [_stacked(self._roots)]

    def step(self, action: Leaves) -> Transition:
        """Advance every env that is not retired; `action` is the TensorDict that the policy has written into."""
        made = action[0]
        reward: Array = np.zeros(len(self._hosts))
        ended: list[Ended] = []
        failed: list[tuple[int, Exception]] = []
        for env, host in enumerate(self._hosts):
            if env in self._retired:
                continue
            row = [made[env]]
            moved = host.step(row)
            if moved.failed:
                failed.append((env, moved.failed[0][1]))
                continue
            self._nexts[env], self._roots[env] = row[0].get(NEXT), self._kept(moved.observation[0])
            reward[env] = moved.reward[0]
            ended.extend((env, terminated, truncated) for _, terminated, truncated in moved.ended)
        made.set(NEXT, _stacked(self._all_nexts()))
        return Transition([_stacked(self._roots)], reward, ended, failed=failed, info=[{}] * len(self._hosts))

    def step_one(self, env: int, action: Leaves) -> Transition:
        """Advance this env alone; the other rows are those of its last step."""
        others, self._retired = self._retired, set(range(len(self._hosts))) - {env}
        try:
            return self.step(action)
        finally:
            self._retired = others

    def rebuild(self) -> Leaves:
        """Close all envs, build them anew and reset them."""
        for host in self._hosts:
            host.rebuild()
        return self.reset_all()

    def retire(self, envs: Sequence[int]) -> None:
        """Step these envs no more."""
        self._retired.update(envs)

    def render(self, env: int) -> Array | None:
        """A frame of this env."""
        return self._hosts[env].render(0)

    def seed_of(self, env: int) -> int | None:
        """The seed that this env was last given."""
        return self._hosts[env].seed_of(0)

    def read(self, rewards: Sequence[Key], dones: Sequence[Key]) -> None:
        """As `TorchRLHost.read`."""
        for host in self._hosts:
            host.read(rewards, dones)

    def close(self) -> None:
        """Close the envs; twice is fine."""
        for host in self._hosts:
            host.close()

    def _begun(self, env: int, seed: int | None) -> TensorDictBase:
        try:
            root: TensorDictBase = self._hosts[env].reset_all(None if seed is None else [seed])[0]
        except EnvRaised as raised:
            raise EnvRaised(env, raised.cause) from raised.cause
        return root

    def _kept(self, root: TensorDictBase) -> TensorDictBase:
        """What the env itself writes: a policy's entries of the step before are in some rows only."""
        return root.select(*self._carried, strict=False)

    def _all_nexts(self) -> list[TensorDictBase]:
        """What each env wrote last; an env that was never stepped shows zeros."""
        stepped = [following for following in self._nexts if following is not None]
        example = stepped[0] if stepped else self._hosts[0].spec.imagine().get(NEXT)
        return [torch.zeros_like(example) if each is None else each for each in self._nexts]

    def _draw(self, td: TensorDictBase) -> TensorDictBase:
        rows = [host.spec.draw(row) for host, row in zip(self._hosts, td.unbind(0), strict=True)]
        return td.update(_stacked(rows))


def _stacked(rows: Sequence[TensorDictBase]) -> Any:
    """As one TensorDict `[B]`; a lazy one where shapes differ."""
    return TensorDict.maybe_dense_stack(list(rows), 0)


def _keys_of(td: TensorDictBase) -> list[Key]:
    keys = td.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)
    return [as_key(as_tuple(key)) for key in keys]


def _require_alike(hosts: Sequence[Single]) -> None:
    first = hosts[0].spec
    for place, host in enumerate(hosts):
        spec = host.spec
        if spec.batch_shape:
            raise ValueError(f"env {place} of the list, {host.env}, is a batch already; a list takes single envs")
        for what in ("observed", "acted", "rewarded", "flags"):
            _require_same_keys(what, first, spec, place)


def _require_same_keys(what: str, first: TensorDictSpec, spec: TensorDictSpec, place: int) -> None:
    mine, theirs = sorted(map(as_tuple, getattr(first, what))), sorted(map(as_tuple, getattr(spec, what)))
    if mine != theirs:
        raise ValueError(f"the envs of the list differ: entries {what} of env 0 are {mine}, of env {place} {theirs}")
