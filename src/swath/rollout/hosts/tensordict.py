"""The host for envs that read and write a TensorDict, and the reader of their rewards and ends.

    [root] ──▶ policy writes ──▶ step ──▶ "next" [*B] ──▶ rewards, ends     and the root of the next step

The only leaf is a TensorDict `[*B]`. A single env may be batched. Several envs are stepped separately, so that each has
its own seeds and can retire; their rows are stacked, lazily where shapes differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor

from swath.keys import DONE, FLAGS, NEXT, TRUNCATED, Key, as_tuple
from swath.rollout.hosts.base import NO_ENDS, DeviceEnds, Ends, EnvRaised, Host, MakeEnvs, TensorDictSpec, Transition
from swath.rollout.spaces import Array, Leaves

Keys: TypeAlias = Sequence[Key]


class TensorDictHost(Host):
    """One env, batched or not, or several single ones.

    Each is a `TorchRLEnv` or a `ZooEnv`, which have the same attributes and methods.

    Args:
        envs: one env; or unbatched envs, if `separate`.
        make: builds them again; `None` for instances that the user built.
        separate: whether to step each env alone and stack their rows.

    Attributes:
        reader: reads rewards and ends of steps; may be replaced.

    Raises:
        ValueError: envs that differ in their agents, spaces or entries.
    """

    spec: TensorDictSpec

    def __init__(self, envs: Sequence[Any], make: MakeEnvs | None, *, separate: bool) -> None:
        super().__init__(envs, make)
        n, (name, first) = len(envs), envs[0].kind
        for place, env in enumerate(envs):
            if env.kind[1] != first:
                raise ValueError(f"env {place} has other {name} than env 0: {env.kind[1]}, not {first}")
        self._separate = separate
        changes = {"num_envs": n, "batch_shape": (n,), "steps_singly": True, "seeding": "episode"} if separate else {}
        self.spec = replace(envs[0].spec, host=self, autoresets=envs[0].autoresets and not separate, **changes)
        self.reader = StepReader(self.spec)
        self._retired = set[int]()
        self._ends: NextEnds | None = None  # ends of the last step, of envs that reset themselves
        self._root_keys: list[Any] = []
        self._roots: list[Any] = [None] * n
        self._next_tds: list[Any] = [None] * n

    @property
    def env(self) -> Any:
        """Return the env, or a list of several."""
        return [env.env for env in self.envs] if self._separate else self.envs[0].env

    @property
    def stateful(self) -> Any:
        """Return the part of the env that has a `state_dict`, or `None`."""
        return getattr(self.envs[0], "stateful", None)

    def pending_resets(self, ended: Sequence[int]) -> Sequence[int]:
        """Return the envs, among the ones that ended, that have not begun another episode, and forget the others."""
        autoreset, self._ends = self._autoreset_envs(), None
        return [env for env in ended if env not in autoreset]

    def draw(self, root: TensorDictBase) -> Any:
        """Write random actions into a root."""
        rows = root.unbind(0) if self._separate else [root]
        return self._stack([env.draw(row) for env, row in zip(self.envs, rows, strict=True)])

    def zero_step(self) -> Any:
        """Return a TensorDict of zeros with the entries of a step, except those that the policy writes."""
        return self._stack([env.zero_step() for env in self.envs])

    def reset_all(self, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in every env, also in retired ones; a batched env gets the first seed."""
        self._retired.clear()
        self._ends = None
        for place in range(len(self.envs)):
            self._begin(place, seeds if seeds is None or not self._separate else [seeds[place]])
        if self._separate:
            keys = self._roots[0].keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)
            self._root_keys = list(keys)
        return [self._stack(self._roots)]

    def reset(self, envs: Sequence[int], base: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs; the envs of a batched env take no seed."""
        if self._separate:
            for env, seed in zip(envs, seeds or [None] * len(envs), strict=True):
                self._begin(env, [seed])
            return [self._stack(self._roots)]
        if seeds is not None and seeds[0] is not None and self.spec.seeding == "episode":
            return self.reset_all([seeds[0]])
        autoreset = self._autoreset_envs()
        to_reset = [env for env in envs if env not in autoreset]
        if not to_reset:
            return base
        try:
            return [self.envs[0].reset_some(base[0].copy(), to_reset)]
        except Exception as error:
            raise EnvRaised(to_reset[0], error) from error

    def step(self, action: Leaves, only: int | None = None) -> Transition:
        """Step every env that is not retired, or the env `only`; rows of other envs are from their last step.

        Args:
            action: the TensorDict that the policy has written into.
            only: index of an env; `None` for a batched env.
        """
        root, n, failed = action[0], self.spec.num_envs, dict[int, Exception]()
        idle = self._retired if only is None else {*range(n)} - {only}
        for place in range(len(self.envs)):
            if place in idle:
                continue
            row = root[place] if self._separate else root
            try:
                row_after, next_root = self.envs[place].step(row)
            except Exception as error:  # noqa: BLE001  `Transition.failed` has it, with its type
                failed |= dict.fromkeys([place] if self._separate else range(n), self.explain(row, error))
            else:  # the next root of a separate env has no entries of the policy, as after a reset
                self._next_tds[place] = row_after.get(NEXT)
                self._roots[place] = next_root.select(*self._root_keys, strict=False) if self._separate else next_root
        next_tds = [td for td in self._next_tds if td is not None]
        if not next_tds or (failed and not self._separate):
            return Transition([], np.zeros(n), failed=[*failed.items()])
        next_td = self._stack([next_tds[0] if td is None else td for td in self._next_tds])
        action[0] = root.set(NEXT, next_td) if self._separate else row_after
        observation = [self._stack(self._roots)]
        if self.spec.autoresets:
            self._ends = NextEnds(self.reader, next_td)
            return Transition(observation, None, device_ends=self._ends)
        ends = self.reader.ends(next_td)
        if idle or failed:
            ends = ends.without([*idle, *failed])
        return Transition(observation, self.reader.reward(next_td), ends, (), [*failed.items()], [{}] * n)

    def explain(self, root: TensorDictBase, error: Exception) -> Exception:
        """Return the error of a step; a `KeyError` with that cause if the policy wrote no action."""
        missing = [key for key in self.spec.action_keys if root.get(key, None) is None]
        if not missing:
            return error
        entries = sorted(map(str, root.keys(include_nested=True)))
        key_error = KeyError(f"the policy must answer with the action {missing}; the entries are {entries}")
        key_error.__cause__ = error
        return key_error

    def retire(self, envs: Sequence[int]) -> None:
        """Stop stepping these envs; a batched env continues to step all of its envs."""
        self._retired.update(envs if self._separate else ())

    def release(self) -> None:
        """End the processes of a planned `ParallelEnv`."""
        for env in self.envs:
            if (plan := getattr(env, "plan", None)) is not None:
                plan.close()

    def render(self, env: int) -> Array | None:
        """Return a frame of this env or its last pixels entry; of a batched env the pixels if there are any."""
        place, row = (env, 0) if self._separate else (0, env)
        source = self.envs[place]
        pixels = _pixels(self._next_tds[place], row, source.spec.batch_shape)
        frame = None if pixels is not None and source.spec.num_envs > 1 else source.render(row)
        return pixels if frame is None else frame

    def _autoreset_envs(self) -> Sequence[int]:
        """Return the envs that have reset themselves in the last step; waits for their device."""
        return () if self._ends is None else self._ends.read()[0].envs.tolist()

    def _begin(self, place: int, seeds: Sequence[int | None] | None) -> None:
        seeded = seeds is not None and seeds[0] is not None
        try:
            self._roots[place] = self.envs[place].reset(seeds if seeded else None)
        except Exception as error:
            raise EnvRaised(place, error) from error
        if seeds is not None and seeds[0] is not None:
            self._seeds |= dict.fromkeys([place] if self._separate else range(self.spec.num_envs), seeds[0])

    def _stack(self, rows: Sequence[Any]) -> Any:
        """Stack the rows of separate envs as one TensorDict `[B]`, a lazy one where shapes differ."""
        return TensorDict.maybe_dense_stack(list(rows), 0) if self._separate else rows[0]


class StepReader:
    """Reader of rewards and ends in `"next"` `[*B]`.

    Args:
        spec: properties of the envs.
        rewards: entries under `"next"` whose mean is the reward; `None` for the sum of all reward entries.
        dones: flags that end an episode when all of them are set, in addition to flags at the root; `None`: any flag in
            `spec.done_keys` ends an episode.
    """

    def __init__(self, spec: TensorDictSpec, rewards: Keys | None = None, dones: Keys | None = None) -> None:
        self._n, self._reward_keys, self._rewards, self._dones = spec.num_envs, spec.reward_keys, rewards, dones
        self._batch_dims = len(spec.batch_shape)
        truncated_keys = {(*as_tuple(key)[:-1], TRUNCATED) for key in dones or ()}
        self._truncated_keys = [key for key in spec.all_done_keys if as_tuple(key) in truncated_keys]
        flags = spec.done_keys if dones is None else [key for key in spec.all_done_keys if len(as_tuple(key)) == 1]
        self._flags = {kind: [key for key in flags if as_tuple(key)[-1] == kind] for kind in FLAGS}

    def reward(self, next_td: TensorDictBase) -> Array:
        """Return rewards `[B]`; `[B, T]` of steps `[*B, T]`. Waits for the device of the envs."""
        if self._rewards is not None:
            return mean_of(next_td, self._rewards, self._n)
        sums = list[Array]()
        for key in self._reward_keys:
            with suppress(RuntimeError):  # an entry of agents whose shapes differ is no tensor
                rows = self._rows(next_td, key)
                sums.append(rows[..., 0] if rows.shape[-1] == 1 else rows.sum(-1))
        return sums[0] if len(sums) == 1 else sum(sums, np.zeros(self._lead(next_td)))

    def ends(self, next_td: TensorDictBase) -> Ends:
        """Return the episodes that ended with a step; waits for the device of the envs."""
        # "done" includes all flags of its group.
        if not self._dones and not any(bool(next_td.get(key).any()) for key in self._flags[DONE]):
            return NO_ENDS
        return Ends.from_flags(*self.flags(next_td))

    def flags(self, next_td: TensorDictBase) -> tuple[Array, Array]:
        """Return whether episodes terminated, and were truncated: bool `[B]`; `[B, T]` of steps `[*B, T]`."""
        done, terminated, truncated = (self._any(next_td, self._flags[kind]) for kind in FLAGS)
        terminated |= done & ~truncated
        if self._dones:
            all_done = np.logical_and.reduce([self._rows(next_td, key).all(-1) for key in self._dones])
            all_done, by_limit = all_done & ~(terminated | truncated), self._any(next_td, self._truncated_keys)
            terminated, truncated = terminated | (all_done & ~by_limit), truncated | (all_done & by_limit)
        return terminated, truncated

    def _any(self, next_td: TensorDictBase, keys: Sequence[Key]) -> Array:
        """Return whether any of the flags is set."""
        no_flags: Array = np.zeros(self._lead(next_td), np.bool_)
        return np.logical_or.reduce([no_flags, *(self._rows(next_td, key).any(-1) for key in keys)])  # type: ignore[no-any-return]

    def _rows(self, next_td: TensorDictBase, key: Key) -> Array:
        """Return an entry as an array `[B, n]`, or `[B, T, n]`."""
        array: Array = next_td.get(key).numpy(force=True)
        return array.reshape(*self._lead(next_td), -1)

    def _lead(self, next_td: TensorDictBase) -> tuple[int, ...]:
        return (self._n, *next_td.batch_size[self._batch_dims :])


class NextEnds(DeviceEnds):
    """The ends in `"next"` `[*B]`, read where they are asked for.

    Args:
        reader: reads them.
        next_td: `"next"`.
    """

    def __init__(self, reader: StepReader, next_td: TensorDictBase) -> None:
        self._reader, self._next_td = reader, next_td

    @property
    def ended(self) -> torch.Tensor:
        """Return whether each env ended, `[B]`."""
        return torch.from_numpy(np.logical_or(*self._reader.flags(self._next_td)))

    def read(self) -> tuple[Ends, list[int]]:
        """Return the ends; no row is void."""
        return self._reader.ends(self._next_td), []


def mean_of(next_td: TensorDictBase, keys: Sequence[Key], n: int) -> Array:
    """Return the mean over entries, of each the mean over its dimensions after `*B`: float64 `[B]`."""
    means = [next_td.get(key).detach().cpu().reshape(n, -1).double().mean(1).numpy() for key in keys]
    return np.asarray(np.mean(means, axis=0))


def _pixels(next_td: TensorDictBase | None, env: int, batch_shape: tuple[int, ...]) -> Array | None:
    """Return the pixels entry of an env, colours last, or `None`."""
    pixels = None if next_td is None else next_td.get("pixels", None)
    if pixels is None:
        return None
    frame: Array = pixels[np.unravel_index(env, batch_shape) if batch_shape else ...].detach().cpu().numpy()
    if frame.ndim == 3 and frame.shape[2] not in (1, 3, 4) and frame.shape[0] in (1, 3, 4):
        frame = np.moveaxis(frame, 0, 2)
    return frame if frame.dtype == np.uint8 else (frame * 255).round().astype(np.uint8)
