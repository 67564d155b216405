"""The host for envs that read and write a TensorDict, and what their steps say.

    [root] ──▶ policy writes ──▶ env.advance ──▶ "next" [*B] ──▶ rewards, ends     and the root of the next step

The only leaf is a TensorDict `[*B]`. One env is stepped as it is, batched or not. Several are kept apart, so that each
has seeds of its own and stands still when it is retired; their rows are stacked, lazily where shapes differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor

from swath.keys import DONE, FLAGS, NEXT, Key, as_tuple
from swath.rollout.hosts.base import NO_ENDS, Ends, EnvHost, EnvRaised, TensorDictSpec, Transition
from swath.rollout.spaces import Array, Leaves

_PIXELS = "pixels"
_COLOURS = (1, 3, 4)


class TensorDictEnv:
    """An env as `TensorDictHost` uses it. Methods raise what the env raised.

    Args:
        env: the env itself.
        spec: what it looks like.

    Attributes:
        kind: in what envs side by side must agree: its name, and its value.
        resets: whether episodes that end begin anew within the step, as in TorchRL's own collectors.
        stateful: what of it has a state dict; `None` if nothing has.
    """

    kind: tuple[str, Any]
    resets = False
    stateful: Any = None

    def __init__(self, env: Any, spec: TensorDictSpec) -> None:
        self.env, self.spec = env, spec

    def begin(self, seeds: Sequence[int] | None) -> Any:
        """Begin an episode in every env of the batch: the root. The first seed is that of all."""
        raise NotImplementedError

    def begin_in(self, root: TensorDictBase, envs: Sequence[int]) -> Any:  # noqa: ARG002  for batches
        """Begin an episode in these envs of the batch: the root with their rows replaced."""
        return self.begin(None)

    def advance(self, root: TensorDictBase) -> tuple[Any, Any]:
        """Step: the root that the policy has written into, with `"next"`; and the root of the next step."""
        raise NotImplementedError

    def render(self, env: int) -> Array | None:
        """A frame of this env of the batch; `None` if it does not render arrays."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the env."""
        self.env.close()


class TensorDictHost(EnvHost):
    """One env as it is, or several single envs apart.

    Args:
        envs: one, or at least one if they are apart.
        make: builds them anew; `None` for instances of the user's.
        apart: whether they are stepped one by one, `*B` being their number.

    Attributes:
        envs: the envs.

    Raises:
        ValueError: envs apart that differ in their agents, spaces or entries.
    """

    envs: list[TensorDictEnv]

    def __init__(
        self,
        envs: Sequence[TensorDictEnv],
        make: Callable[[], Sequence[TensorDictEnv]] | None = None,
        *,
        apart: bool = False,
    ) -> None:
        super().__init__(envs, make)
        self._apart = apart
        first, n = self.envs[0].spec, len(self.envs)
        self.spec = replace(first, draw=self._draw, imagine=self._imagine, env=lambda: self.envs[0].env, alone=apart)
        if apart:
            _require_alike(self.envs)
            self.spec = replace(self.spec, num_envs=n, batch_shape=(n,), seeding="episode")
        self._reading = Reading(self.spec)
        self._begun = set[int]()
        self._following: TensorDictBase | None = None
        self._retired: set[int] = set()
        self._written: list[Any] = []
        self._roots: list[Any] = []
        self._nexts: dict[int, Any] = {}

    @property
    def env(self) -> Any:
        """The env, or a list of those that are apart."""
        return [each.env for each in self.envs] if self._apart else self.envs[0].env

    def reset_all(self, seeds: Sequence[int] | None = None) -> Leaves:
        """Begin an episode in every env, also in retired ones; the first seed is that of all envs of a batch."""
        self._retired.clear()
        self._begun.clear()
        if not self._apart:
            return [self._begin(0, seeds)]
        own = [None] * len(self.envs) if seeds is None else [[seed] for seed in seeds]
        self._roots = [self._begin(env, mine) for env, mine in enumerate(own)]
        self._written = list(self._roots[0].keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor))
        return [_stacked(self._roots)]

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs; those of a batch take no seed for it."""
        seeds = [None] * len(envs) if seeds is None else seeds
        if self._apart:
            for env, seed in zip(envs, seeds, strict=True):
                self._roots[env] = self._begin(env, None if seed is None else [seed])
            return [_stacked(self._roots)]
        if seeds[0] is not None and self.spec.seeding == "episode":
            return self.reset_all([seeds[0]])
        due = [env for env in envs if env not in self._begun]
        if not due:
            return onto
        try:
            return [self.envs[0].begin_in(onto[0].copy(), due)]
        except Exception as error:
            raise EnvRaised(due[0], error) from error

    def step(self, action: Leaves, only: int | None = None) -> Transition:
        """Advance every env that is not retired, or `only` one of those that are apart.

        `action` is the TensorDict that the policy has written into.
        """
        failed, n = list[tuple[int, Exception]](), self.spec.num_envs
        idle = self._retired if only is None else {*range(n)} - {only}
        if self._apart:
            root = self._step_apart(action[0], idle, failed)
        else:
            try:
                action[0], root = _advanced(self.envs[0], action[0])
            except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
                return Transition([], np.zeros(n), failed=[(env, error) for env in range(n)])
        self._following = following = action[0].get(NEXT)
        ended = self._reading.ends(following)
        if failed or (idle and self._apart):
            ended = ended.without([*idle, *dict(failed)])
        self._begun = set(ended.envs.tolist() if self.envs[0].resets else ())
        return Transition([root], self._reading.reward(following), ended, failed=failed, info=[{}] * n)

    def retire(self, envs: Sequence[int]) -> None:
        """Step these envs no more, if they are apart; rows of a batch are ignored by whoever retired them."""
        self._retired.update(envs)

    def render(self, env: int) -> Array | None:
        """A frame of this env if it renders arrays, else the pixels that it has written; in a batch these first."""
        written = _pixels(self._following, env, self.spec.batch_shape)
        if self._apart:
            frame = self.envs[env].render(0)
        else:
            frame = None if written is not None and self.spec.num_envs > 1 else self.envs[0].render(env)
        return written if frame is None else frame

    def read(self, rewards: Sequence[Key], dones: Sequence[Key]) -> None:
        """From now on rewards are the mean of these entries, and all of these flags together end an episode too.

        Keys are those under `"next"`.
        """
        self._reading = Reading(self.spec, rewards, dones)

    def env_state(self) -> Mapping[str, Any]:
        """The state of the transforms."""
        stateful = self.envs[0].stateful
        return {} if stateful is None else stateful.state_dict()

    def load_env_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the transforms."""
        stateful = self.envs[0].stateful
        if stateful is not None and state:
            stateful.load_state_dict(state)

    def _begin(self, env: int, seeds: Sequence[int] | None) -> Any:
        try:
            root = self.envs[env].begin(seeds)
        except Exception as error:
            raise EnvRaised(env, error) from error
        if seeds is not None:  # the first is that of all in a batch
            self._seeds |= dict.fromkeys([env] if self._apart else range(self.spec.num_envs), seeds[0])
        return root

    def _step_apart(self, made: TensorDictBase, idle: set[int], failed: list[tuple[int, Exception]]) -> Any:
        """Step all others, and put what that led to into what was made; those that failed are noted."""
        for env, each in enumerate(self.envs):
            if env in idle:
                continue
            try:
                row, root = _advanced(each, made[env])
            except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
                failed.append((env, error))
                continue
            # A policy's entries of this step are not in the rows of envs that are reset, so they cannot be stacked.
            self._nexts[env], self._roots[env] = row.get(NEXT), root.select(*self._written, strict=False)
        any_of_them = [*self._nexts.values()] or [self.envs[0].spec.imagine().get(NEXT)]
        made.set(NEXT, _stacked([self._nexts.get(env, any_of_them[0]) for env in range(len(self.envs))]))
        return _stacked(self._roots)

    def _draw(self, root: TensorDictBase) -> TensorDictBase:
        if not self._apart:
            return self.envs[0].spec.draw(root)
        return root.update(_stacked([each.spec.draw(row) for each, row in zip(self.envs, root.unbind(0), strict=True)]))

    def _imagine(self) -> Any:
        each = [env.spec.imagine() for env in self.envs]
        return _stacked(each) if self._apart else each[0]


def _advanced(env: TensorDictEnv, root: TensorDictBase) -> tuple[Any, Any]:
    """The step of an env.

    Raises:
        KeyError: the policy has not written an action.
        Exception: what the env raised.
    """
    try:
        return env.advance(root)
    except Exception as error:
        missing = [key for key in env.spec.acted if root.get(key, None) is None]
        if missing:
            there = sorted(map(str, root.keys(include_nested=True)))
            raise KeyError(f"the policy must answer with the action {missing}; the entries are {there}") from error
        raise


class Reading:
    """Reads rewards and ends of `"next"` `[*B]`.

    Args:
        spec: the envs.
        rewards: entries whose mean is the reward; `None`: it is the sum of all reward entries.
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
            own = terminated | truncated
            terminated = np.where(own, terminated, done & (ended | ~cut))
            truncated = np.where(own, truncated, done & cut)
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


def _require_alike(envs: Sequence[TensorDictEnv]) -> None:
    what, first = envs[0].kind
    for place, each in enumerate(envs):
        if each.kind != (what, first):
            raise ValueError(
                f"env {place} has other {what} than env 0: {each.kind[1]}, not {first}; envs of one worker must agree "
                "in them"
            )
