"""The host for envs that read and write a TensorDict, and what their steps say.

    [root] ──▶ policy writes ──▶ advance ──▶ "next" [*B] ──▶ rewards, ends     and the root of the next step

The only leaf is a TensorDict `[*B]`. One env is stepped as it is, batched or not. Several are kept apart, so that each
has seeds of its own and stands still when it is retired; their rows are stacked, lazily where shapes differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor

from swath.keys import DONE, FLAGS, NEXT, TRUNCATED, Key, as_tuple
from swath.rollout.hosts.base import NO_ENDS, Ends, EnvRaised, Host, Make, TensorDictSpec, Transition
from swath.rollout.spaces import Array, Leaves

Keys: TypeAlias = Sequence[Key]


class TensorDictHost(Host):
    """One env, batched or not, or several single ones.

    Each is a `TorchRLEnv` or a `ZooEnv`, which have the same attributes and methods.

    Args:
        envs: one env; or single envs, if `apart`.
        make: builds as many others; `None` for instances of the user's.
        apart: whether the envs are kept apart, and stacked.

    Attributes:
        reader: reads what their steps say; another one may be put in its place.

    Raises:
        ValueError: envs that differ in their agents, spaces or entries.
    """

    spec: TensorDictSpec

    def __init__(self, envs: Sequence[Any], make: Make | None, *, apart: bool) -> None:
        super().__init__(envs, make)
        n, (what, first) = len(envs), envs[0].kind
        for place, env in enumerate(envs):
            if env.kind[1] != first:
                raise ValueError(f"env {place} has other {what} than env 0: {env.kind[1]}, not {first}")
        self._apart, looks = apart, {"num_envs": n, "batch_shape": (n,), "alone": True, "seeding": "episode"}
        self.spec = replace(envs[0].spec, host=self, **(looks if apart else {}))
        self.reader = StepReader(self.spec)
        self._retired, self._begun = set[int](), set[int]()
        self._written: list[Any] = []
        self._roots: list[Any] = [None] * n
        self._nexts: list[Any] = [None] * n

    @property
    def env(self) -> Any:
        """The env, or the list of several."""
        return [each.env for each in self.envs] if self._apart else self.envs[0].env

    @property
    def stateful(self) -> Any:
        """What of the env has a state that can be saved; `None` if nothing has one."""
        return getattr(self.envs[0], "stateful", None)

    def draw(self, root: TensorDictBase) -> Any:
        """Write random actions into a root."""
        rows = root.unbind(0) if self._apart else [root]
        return self._whole([env.draw(row) for env, row in zip(self.envs, rows, strict=True)])

    def imagine(self) -> Any:
        """A TensorDict of zeros as a step leaves it, without what the policy writes."""
        return self._whole([env.imagine() for env in self.envs])

    def reset_all(self, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in every env, also in retired ones; the first seed is that of all envs of a batch."""
        self._retired.clear()
        self._begun.clear()
        for place in range(len(self.envs)):
            self._begin(place, seeds if seeds is None or not self._apart else [seeds[place]])
        if self._apart:
            self._written = list(self._roots[0].keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor))
        return [self._whole(self._roots)]

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs; those of a batch take no seed for it."""
        if self._apart:
            for env, seed in zip(envs, seeds or [None] * len(envs), strict=True):
                self._begin(env, [seed])
            return [self._whole(self._roots)]
        if seeds is not None and seeds[0] is not None and self.spec.seeding == "episode":
            return self.reset_all([seeds[0]])
        due = [env for env in envs if env not in self._begun]
        if not due:
            return onto
        try:
            return [self.envs[0].begin_in(onto[0].copy(), due)]
        except Exception as error:
            raise EnvRaised(due[0], error) from error

    def step(self, action: Leaves, only: int | None = None) -> Transition:
        """Advance every env that is not retired, or `only` one; the rows of the others are those of their last step.

        `action` is the TensorDict that the policy has written into. A batch is stepped as a whole.
        """
        made, n, failed = action[0], self.spec.num_envs, dict[int, Exception]()
        idle = self._retired if only is None else {*range(n)} - {only}
        for place in range(len(self.envs)):
            if place in idle:
                continue
            given = made[place] if self._apart else made
            try:
                row, root = self.envs[place].advance(given)
            except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
                missing = [key for key in self.spec.acted if given.get(key, None) is None]
                there = sorted(map(str, given.keys(include_nested=True)))
                bad = KeyError(f"the policy must answer with the action {missing}; the entries are {there}")
                bad.__cause__ = error
                failed |= dict.fromkeys([place] if self._apart else range(n), bad if missing else error)
            else:  # a policy's entries of this step are not in the rows of envs that are reset
                self._nexts[place] = row.get(NEXT)
                self._roots[place] = root.select(*self._written, strict=False) if self._apart else root
        nexts = [each for each in self._nexts if each is not None]
        if not nexts or (failed and not self._apart):
            return Transition([], np.zeros(n), failed=[*failed.items()])
        following = self._whole([nexts[0] if each is None else each for each in self._nexts])
        action[0] = made.set(NEXT, following) if self._apart else row
        ended = self.reader.ends(following)
        if idle or failed:
            ended = ended.without([*idle, *failed])
        self._begun = set(ended.envs.tolist() if self.envs[0].resets else ())
        root = self._whole(self._roots)
        return Transition([root], self.reader.reward(following), ended, (), [*failed.items()], [{}] * n)

    def retire(self, envs: Sequence[int]) -> None:
        """Step these envs no more; rows of a batch are ignored by whoever retired them."""
        self._retired.update(envs if self._apart else ())

    def render(self, env: int) -> Array | None:
        """A frame of this env if it renders arrays, else the pixels that it has written; in a batch these first."""
        place, row = (env, 0) if self._apart else (0, env)
        one = self.envs[place]
        written = _pixels(self._nexts[place], row, one.spec.batch_shape)
        frame = None if written is not None and one.spec.num_envs > 1 else one.rendered(row)
        return written if frame is None else frame

    def _begin(self, place: int, seeds: Sequence[int | None] | None) -> None:
        seeded = seeds is not None and seeds[0] is not None
        try:
            self._roots[place] = self.envs[place].begin(seeds if seeded else None)
        except Exception as error:
            raise EnvRaised(place, error) from error
        if seeds is not None and seeds[0] is not None:
            self._seeds |= dict.fromkeys([place] if self._apart else range(self.spec.num_envs), seeds[0])

    def _whole(self, rows: Sequence[Any]) -> Any:
        """As one TensorDict `[*B]`; a lazy one where shapes differ."""
        return TensorDict.maybe_dense_stack(list(rows), 0) if self._apart else rows[0]


class StepReader:
    """Reads rewards and ends of `"next"` `[*B]`.

    Args:
        spec: the envs.
        rewards: entries under `"next"` whose mean is the reward; `None`: it is the sum of all reward entries.
        dones: flags that end an episode when all of them are set, as flags at the root do; `None`: any flag that counts
            ends one.
    """

    def __init__(self, spec: TensorDictSpec, rewards: Keys | None = None, dones: Keys | None = None) -> None:
        self._n, self._rewarded, self._rewards, self._dones = spec.num_envs, spec.rewarded, rewards, dones
        beside = {(*as_tuple(key)[:-1], TRUNCATED) for key in dones or ()}
        self._cuts = [key for key in spec.flags if as_tuple(key) in beside]
        own = spec.done if dones is None else [key for key in spec.flags if len(as_tuple(key)) == 1]
        self._own = {kind: [key for key in own if as_tuple(key)[-1] == kind] for kind in FLAGS}

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
        # "done" stands for all flags of its group.
        if not self._dones and not any(bool(following.get(key).any()) for key in self._own[DONE]):
            return NO_ENDS
        done, terminated, truncated = (self._any(following, self._own[kind]) for kind in FLAGS)
        terminated |= done & ~truncated
        if self._dones:
            over = np.logical_and.reduce([self._rows(following, key).all(1) for key in self._dones])
            over, cut = over & ~(terminated | truncated), self._any(following, self._cuts)
            terminated, truncated = terminated | (over & ~cut), truncated | (over & cut)
        return Ends.flagged(terminated, truncated)

    def _any(self, following: TensorDictBase, keys: Sequence[Key]) -> Array:
        """Where any of these flags is set: bool `[B]`."""
        none: Array = np.zeros(self._n, np.bool_)
        return np.logical_or.reduce([none, *(self._rows(following, key).any(1) for key in keys)])  # type: ignore[no-any-return]

    def _rows(self, following: TensorDictBase, key: Key) -> Array:
        """An entry `[B, …]`, with one dimension more."""
        array: Array = following.get(key).numpy(force=True)
        return array.reshape(self._n, -1)


def mean_of(following: TensorDictBase, keys: Sequence[Key], n: int) -> Array:
    """Float64 `[B]`: the mean over these entries, each the mean over its dimensions behind `*B`."""
    each = [following.get(key).detach().cpu().reshape(n, -1).double().mean(1).numpy() for key in keys]
    return np.asarray(np.mean(each, axis=0))


def _pixels(following: TensorDictBase | None, env: int, batch_shape: tuple[int, ...]) -> Array | None:
    """The pixels that an env has written, colours last; `None` if it has written none."""
    pixels = None if following is None else following.get("pixels", None)
    if pixels is None:
        return None
    seen: Array = pixels[np.unravel_index(env, batch_shape) if batch_shape else ...].detach().cpu().numpy()
    if seen.ndim == 3 and seen.shape[2] not in (1, 3, 4) and seen.shape[0] in (1, 3, 4):
        seen = np.moveaxis(seen, 0, 2)
    return seen if seen.dtype == np.uint8 else (seen * 255).round().astype(np.uint8)
