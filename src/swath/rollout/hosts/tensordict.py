"""Hosts for envs that read and write a TensorDict, and what their steps say.

    [root] ──▶ policy writes ──▶ advance ──▶ "next" [*B] ──▶ rewards, ends     and the root of the next step

The only leaf is a TensorDict `[*B]`. One env is stepped as it is, batched or not. Several are kept apart, so that each
has seeds of its own and stands still when it is retired; their rows are stacked, lazily where shapes differ.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor

from swath.keys import DONE, FLAGS, NEXT, Key, as_tuple
from swath.rollout.hosts.base import NO_ENDS, Ends, EnvHost, EnvRaised, Make, TensorDictSpec, Transition
from swath.rollout.spaces import Array, Leaves

_PIXELS = "pixels"
_COLOURS = (1, 3, 4)


class TensorDictHost(EnvHost):
    """One env, batched or not.

    Args:
        env: the env.
        make: builds another one; `None` for an instance of the user's.
        spec: what it looks like.
        kind: in what envs side by side must agree: its name, and its value.

    Attributes:
        resets: whether episodes that end begin anew within the step, as in TorchRL's own collectors.
        reader: reads what its steps say; another one may be put in its place.
    """

    resets = False

    def __init__(self, env: Any, make: Make | None, spec: TensorDictSpec, kind: tuple[str, Any]) -> None:
        super().__init__([env], make)
        self.spec, self.kind = spec, kind
        self.reader = StepReader(spec)
        self._begun = set[int]()
        self._following: TensorDictBase | None = None

    @property
    def env(self) -> Any:
        """The env."""
        return self.envs[0]

    @abstractmethod
    def begin(self, seeds: Sequence[int | None] | None) -> Any:
        """Begin an episode in every env of the batch: the root. The first seed is that of all."""

    def begin_in(self, root: TensorDictBase, envs: Sequence[int]) -> Any:  # noqa: ARG002  for batches
        """Begin an episode in these envs of the batch: the root with their rows replaced."""
        return self.begin(None)

    @abstractmethod
    def advance(self, root: TensorDictBase) -> tuple[Any, Any]:
        """Step: the root that the policy has written into, with `"next"`; and the root of the next step."""

    @abstractmethod
    def rendered(self, env: int) -> Array | None:
        """A frame of this env of the batch; `None` if it does not render arrays."""

    def reset_all(self, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in every env; the first seed is that of all envs of a batch."""
        self._begun.clear()
        try:
            root = self.begin(seeds)
        except Exception as error:
            raise EnvRaised(0, error) from error
        if seeds is not None and seeds[0] is not None:
            self._seeds = dict.fromkeys(range(self.spec.num_envs), seeds[0])
        return [root]

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs; those of a batch take no seed for it."""
        if seeds is not None and seeds[0] is not None and self.spec.seeding == "episode":
            return self.reset_all([seeds[0]])
        due = [env for env in envs if env not in self._begun]
        if not due:
            return onto
        try:
            return [self.begin_in(onto[0].copy(), due)]
        except Exception as error:
            raise EnvRaised(due[0], error) from error

    def step(self, action: Leaves, only: int | None = None) -> Transition:
        """Advance every env: `action` is the TensorDict that the policy has written into; `only` is not asked for."""
        assert only is None
        n = self.spec.num_envs
        try:
            action[0], root = self.advanced(action[0])
        except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
            return Transition([], np.zeros(n), failed=[(env, error) for env in range(n)])
        following = action[0].get(NEXT)
        ended = self.reader.ends(following)
        self._begun = set(ended.envs.tolist() if self.resets else ())
        return Transition([root], self.reader.reward(following), ended, info=[{}] * n)

    def advanced(self, root: TensorDictBase) -> tuple[Any, Any]:
        """As `advance`.

        Raises:
            KeyError: the policy has not written an action.
            Exception: what the env raised.
        """
        try:
            made, root = self.advance(root)
        except Exception as error:
            missing = [key for key in self.spec.acted if root.get(key, None) is None]
            if not missing:
                raise
            there = sorted(map(str, root.keys(include_nested=True)))
            raise KeyError(f"the policy must answer with the action {missing}; the entries are {there}") from error
        self._following = made.get(NEXT)
        return made, root

    def retire(self, envs: Sequence[int]) -> None:
        """Rows of these envs are ignored by whoever retired them: a batch is stepped as a whole."""

    def render(self, env: int) -> Array | None:
        """A frame of this env if it renders arrays, else the pixels that it has written; in a batch these first."""
        written = _pixels(self._following, env, self.spec.batch_shape)
        frame = None if written is not None and self.spec.num_envs > 1 else self.rendered(env)
        return written if frame is None else frame


class SideBySide(EnvHost):
    """Single envs, stepped one after another.

    Args:
        hosts: of one env each, at least one.
        make: builds as many others; `None` for instances of the user's.

    Attributes:
        reader: as in `TensorDictHost`.

    Raises:
        ValueError: envs that differ in their agents, spaces or entries.
    """

    envs: list[TensorDictHost]

    def __init__(self, hosts: Sequence[TensorDictHost], make: Make | None = None) -> None:
        super().__init__(hosts, make)
        n, (what, first) = len(hosts), hosts[0].kind
        for place, host in enumerate(hosts):
            if host.kind != (what, first):
                raise ValueError(f"env {place} has other {what} than env 0: {host.kind[1]}, not {first}")
        self.spec = replace(
            hosts[0].spec,
            num_envs=n,
            batch_shape=(n,),
            draw=self._draw,
            imagine=lambda: _stacked([host.spec.imagine() for host in self.envs]),
            env=lambda: self.envs[0].env,
            alone=True,
            seeding="episode",
        )
        self.reader = StepReader(self.spec)
        self._retired: set[int] = set()
        self._written: list[Any] = []
        self._roots: dict[int, Any] = {}
        self._nexts: dict[int, Any] = {}

    @property
    def env(self) -> Any:
        """The envs."""
        return [host.env for host in self.envs]

    def reset_all(self, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in every env, also in retired ones."""
        self._retired.clear()
        leaves = self.reset(range(len(self.envs)), [], seeds)
        self._written = list(self._roots[0].keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor))
        return leaves

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:  # noqa: ARG002
        """Begin an episode in these envs."""
        for env, seed in zip(envs, seeds or [None] * len(envs), strict=True):
            try:
                (self._roots[env],) = self.envs[env].reset_all(None if seed is None else [seed])
            except EnvRaised as raised:
                raise EnvRaised(env, raised.cause) from raised.cause
        return [_stacked([*self._roots.values()])]

    def step(self, action: Leaves, only: int | None = None) -> Transition:
        """Advance every env that is not retired, or `only` one; the rows of the others are those of their last step."""
        made, n, failed = action[0], len(self.envs), list[tuple[int, Exception]]()
        idle = self._retired if only is None else {*range(n)} - {only}
        for env, host in enumerate(self.envs):
            if env in idle:
                continue
            try:
                row, root = host.advanced(made[env])
            except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
                failed.append((env, error))
                continue
            # A policy's entries of this step are not in the rows of envs that are reset, so they cannot be stacked.
            self._nexts[env], self._roots[env] = row.get(NEXT), root.select(*self._written, strict=False)
        any_of_them = [*self._nexts.values()] or [self.envs[0].spec.imagine().get(NEXT)]
        following = _stacked([self._nexts.get(env, any_of_them[0]) for env in range(n)])
        made.set(NEXT, following)
        ended = self.reader.ends(following)
        if failed or idle:
            ended = ended.without([*idle, *dict(failed)])
        root = _stacked([*self._roots.values()])
        return Transition([root], self.reader.reward(following), ended, (), failed, [{}] * n)

    def retire(self, envs: Sequence[int]) -> None:
        """Step these envs no more."""
        self._retired.update(envs)

    def render(self, env: int) -> Array | None:
        """A frame of this env if it renders arrays, else the pixels that it has written."""
        return self.envs[env].render(0)

    def seed_of(self, env: int) -> int | None:
        """The seed that this env was last given."""
        return self.envs[env].seed_of(0)

    def _draw(self, root: TensorDictBase) -> TensorDictBase:
        rows = zip(self.envs, root.unbind(0), strict=True)
        return root.update(_stacked([host.spec.draw(row) for host, row in rows]))


class StepReader:
    """Reads rewards and ends of `"next"` `[*B]`.

    Args:
        spec: the envs.
        rewards: entries under `"next"` whose mean is the reward; `None`: it is the sum of all reward entries.
        dones: flags that end an episode when all of them are set, as flags at the root do; `None`: any flag that counts
            ends one.
    """

    def __init__(
        self, spec: TensorDictSpec, rewards: Sequence[Key] | None = None, dones: Sequence[Key] | None = None
    ) -> None:
        self._n, self._rewarded, self._rewards, self._dones = spec.num_envs, spec.rewarded, rewards, dones
        beside = {as_tuple(key)[:-1] for key in dones or ()}
        self._beside = groups_of([key for key in spec.flags if as_tuple(key)[:-1] in beside])
        self._own = groups_of(spec.done if dones is None else [key for key in spec.flags if len(as_tuple(key)) == 1])
        # "done" stands for all flags of its group, where there is one.
        self._glance = [key for group in self._own for key in ([group[DONE]] if DONE in group else group.values())]

    def reward(self, following: TensorDictBase) -> Array:
        """Rewards `[B]`."""
        if self._rewards is not None:
            return mean_of(following, self._rewards, self._n)
        each = list[Array]()
        for key in self._rewarded:
            with suppress(RuntimeError):  # it is no one tensor, because shapes differ between agents
                rows = self._rows(following, key)
                each.append(rows[:, 0] if rows.shape[1] == 1 else rows.sum(1))
        return each[0] if len(each) == 1 else sum(each, np.zeros(self._n))

    def ends(self, following: TensorDictBase) -> Ends:
        """Episodes that ended."""
        if not self._dones and not any(bool(following.get(key).any()) for key in self._glance):
            return NO_ENDS
        terminated, truncated = self._flags(following, self._own)
        if self._dones:
            done = np.logical_and.reduce([self._rows(following, key).all(1) for key in self._dones])
            ended, cut = self._flags(following, self._beside)
            done &= ~(terminated | truncated)
            terminated, truncated = terminated | (done & (ended | ~cut)), truncated | (done & cut)
        return Ends.flagged(terminated, truncated)

    def _flags(self, following: TensorDictBase, groups: Sequence[Mapping[str, Key]]) -> tuple[Array, Array]:
        """Where any flag of these groups is set: whether terminated `[B]`, whether truncated `[B]`."""
        any_of = {kind: np.zeros(self._n, np.bool_) for kind in FLAGS}
        for group in groups:
            for kind in any_of.keys() & group.keys():
                any_of[kind] |= self._rows(following, group[kind]).any(1)
        done, terminated, truncated = any_of.values()
        return terminated | (done & ~truncated), truncated

    def _rows(self, following: TensorDictBase, key: Key) -> Array:
        """An entry `[B, …]`, with one dimension more."""
        array: Array = following.get(key).numpy(force=True)
        return array.reshape(self._n, -1)


def groups_of(flags: Sequence[Key]) -> list[dict[str, Key]]:
    """End flags that are beside each other, as `{"done": key, "terminated": key, …}`."""
    groups: dict[tuple[str, ...], dict[str, Key]] = {}
    for key in flags:
        *parents, name = as_tuple(key)
        groups.setdefault(tuple(parents), {})[name] = key
    return list(groups.values())


def mean_of(following: TensorDictBase, keys: Sequence[Key], n: int) -> Array:
    """Float64 `[B]`: the mean over these entries, each the mean over its dimensions behind `*B`."""
    each = [following.get(key).detach().cpu().reshape(n, -1).double().mean(1).numpy() for key in keys]
    mean: Array = np.mean(each, axis=0)
    return mean


def _pixels(following: TensorDictBase | None, env: int, batch_shape: tuple[int, ...]) -> Array | None:
    """The pixels that an env has written, colours last; `None` if it has written none."""
    pixels = None if following is None else following.get(_PIXELS, None)
    if pixels is None:
        return None
    frame = pixels[np.unravel_index(env, batch_shape)] if batch_shape else pixels
    seen: Array = frame.detach().cpu().numpy()
    if seen.ndim == 3 and seen.shape[2] not in _COLOURS and seen.shape[0] in _COLOURS:
        seen = np.moveaxis(seen, 0, 2)
    return seen if seen.dtype == np.uint8 else (seen * 255).round().astype(np.uint8)


def _stacked(rows: Sequence[Any]) -> Any:
    """As one TensorDict `[B]`; a lazy one where shapes differ."""
    return TensorDict.maybe_dense_stack(list(rows), 0)
