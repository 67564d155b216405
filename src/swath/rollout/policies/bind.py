"""Anything that users call a policy, bound to a host: leaves of observations in, leaves of outputs out.

    leaves [B, …] ─▶ give ─▶ tensors [*B, …] ─▶ call ─▶ answer ─▶ unpack ─▶ take ─▶ leaves [B, …], actions first

Every choice is made once, from the policy's answer to the first observation; the path of a step has no branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from swath.keys import Key
from swath.rollout.buffer import Column, column_of
from swath.rollout.hosts.base import HostSpec, TensorDictSpec
from swath.rollout.policies.answers import require_fitting, unpacker
from swath.rollout.policies.binding import Binding
from swath.rollout.policies.calling import Call, Convention, caller, convention
from swath.rollout.policies.finite import require_finite
from swath.rollout.policies.path import Path
from swath.rollout.policies.placement import action_taker, copying, giver, taker
from swath.rollout.policies.random_policy import ACTION_MASK, RandomPolicy
from swath.rollout.policies.recurrent import Memory, Recurrent
from swath.rollout.policies.tensordicts import TensorDictActor, TensorDictRandomly, bind_tensordict
from swath.rollout.spaces import Leaves


class BoundPolicy(Protocol):
    """A policy bound to a host, with what its outputs look like. Used by one thread at a time."""

    keys: tuple[Key, ...]
    columns: tuple[Column, ...]
    explores: bool

    def __call__(self, observation: Leaves) -> Leaves:
        """Outputs `[B, …]`, action leaves first."""

    def begin(self, envs: Sequence[int]) -> None:
        """Episodes begin in these envs."""

    def rewind(self) -> None:
        """Take the last call back, for the envs that begin next."""

    def skip(self) -> Leaves:
        """A step is made without this policy; what it remembered before, `[B, …]`, for the last of its columns."""

    def take_over(self, other: Any) -> None:
        """Go on from what `other`, the same kind of policy, remembers."""


class Feedforward:
    """A policy without memory."""

    def __init__(self, path: Path, keys: tuple[Key, ...], columns: tuple[Column, ...]) -> None:
        self._give, self._call, self._unpack, self._takes = path.give, path.call, path.unpack, path.takes
        self.explores = path.explores
        self.keys = keys
        self.columns = columns

    def __call__(self, observation: Leaves) -> Leaves:
        """Outputs for this observation."""
        values = self._unpack(self._call(self._give(observation)))
        return [take(value) for take, value in zip(self._takes, values, strict=True)]

    def begin(self, envs: Sequence[int]) -> None:
        """Nothing is remembered."""

    def rewind(self) -> None:
        """Nothing is remembered."""

    def skip(self) -> Leaves:
        """Nothing is remembered."""
        return []

    def take_over(self, other: Any) -> None:
        """Nothing is remembered."""


class Randomly:
    """Random actions in the place of a bound policy; what only that policy writes is zero, so that keys stay."""

    def __init__(self, policy: RandomPolicy, spec: HostSpec, like: BoundPolicy | None = None) -> None:
        self.explores = False
        self._like = like
        self._sample = policy.sampler(spec.action_space, spec.num_envs)
        self._mask_at = _mask_at(spec)
        self._others = () if like is None else like.columns[len(spec.action) :]
        self.keys = tuple(leaf.key for leaf in spec.action) if like is None else like.keys
        self.columns = tuple(column_of(leaf) for leaf in self._sample(None)) if like is None else like.columns

    def __call__(self, observation: Leaves) -> Leaves:
        """Random actions, zeros, and what the policy would have remembered."""
        mask = None if self._mask_at is None else torch.from_numpy(observation[self._mask_at])
        memory = self.skip()
        zeros = self._others[: len(self._others) - len(memory)]
        return [*self._sample(mask), *(_zero_row(column) for column in zeros), *memory]

    def begin(self, envs: Sequence[int]) -> None:
        """The policy forgets."""
        if self._like is not None:
            self._like.begin(envs)

    def rewind(self) -> None:
        """The policy goes back."""
        if self._like is not None:
            self._like.rewind()

    def skip(self) -> Leaves:
        """The policy's memory."""
        return [] if self._like is None else self._like.skip()

    def take_over(self, other: Any) -> None:
        """Nothing is remembered here."""


def randomly(spec: HostSpec, like: BoundPolicy) -> BoundPolicy:
    """Random actions in the place of this policy."""
    if isinstance(spec, TensorDictSpec):
        assert isinstance(like, TensorDictActor)
        return TensorDictRandomly(spec, like)
    return Randomly(RandomPolicy(), spec, like=like)


def bind(policy: Any, spec: HostSpec, observation: Leaves, options: Binding) -> BoundPolicy:
    """Bind a policy to a host, by calling it once on the first observation to learn its outputs.

    Random states are the caller's to put back. Gradients are off.

    Args:
        policy: `None`, a `RandomPolicy`, a TensorDict module, an `nn.Module` or a callable.
        spec: the host's envs.
        observation: leaves `[B, …]` of the first reset.
        options: device, exploration type, trust, recurrence.

    Raises:
        TypeError: it cannot be called, or its action has the wrong dtype.
        KeyError: an entry it reads or the action is missing.
        ValueError: its action has the wrong shape.
    """
    if isinstance(spec, TensorDictSpec):
        return bind_tensordict(policy, spec, observation, options)
    if policy is None or isinstance(policy, RandomPolicy):
        return _random(policy or RandomPolicy(), spec, observation)
    env_keys = [leaf.key for leaf in spec.observation]
    how = convention(policy, env_keys, trust=options.trust)
    memory = Memory.of(_read(policy, how), env_keys) if options.recurrent else Memory()
    memory.require_written(getattr(policy, "out_keys", None))
    inputs = [*env_keys, *memory.inputs]
    _require_inputs(how, inputs)
    batch = (spec.batch_shape, options.device)
    give = giver(*batch)
    call = caller(policy, how, inputs, batch)(options.exploration)
    kept = [leaf.copy() for leaf in observation]
    answer = _first_answer(call, [*give(observation), *memory.first(*batch)], memory)
    if _put_back(observation, kept):
        give = copying(give)
    keys, unpack = unpacker(policy, answer, spec, inputs)
    values = unpack(answer)
    kinds = [action_taker] * len(spec.action) + [taker] * (len(values) - len(spec.action))
    takes = tuple(kind(spec.batch_shape, value) for kind, value in zip(kinds, values, strict=True))
    leaves = [take(value) for take, value in zip(takes, values, strict=True)]
    require_fitting(keys, leaves, spec)
    for key, value in zip(keys, leaves, strict=True) if options.finite else ():
        require_finite(f"policy output {key!r}", value)
    path = Path(give, call, unpack, takes, how.explores)
    if not memory.inputs:
        return Feedforward(path, keys, tuple(column_of(leaf) for leaf in leaves))
    return Recurrent(path, keys, (values, leaves), memory, batch)


def _random(policy: RandomPolicy, spec: HostSpec, observation: Leaves) -> BoundPolicy:
    """Random actions, tried once: the spec that they are drawn from may be the user's own."""
    bound = Randomly(policy, spec)
    leaves = bound(observation)
    if len(leaves) != len(spec.action):
        raise ValueError(f"{policy.action_spec} has {len(leaves)} leaves, {spec.action_space} wants {len(spec.action)}")
    require_fitting(bound.keys, leaves, spec)
    return bound


def _read(policy: Any, how: Convention) -> Sequence[Key]:
    """The keys that a policy reads, as far as it tells."""
    return (getattr(policy, "in_keys", None) or ()) if how.kind == "tensordict" else how.keys


def _put_back(observation: Leaves, kept: Leaves) -> bool:
    """Whether the policy wrote into its observation; then it is as before again."""
    changed = [leaf.tobytes() != before.tobytes() for leaf, before in zip(observation, kept, strict=True)]
    for leaf, before in zip(observation, kept, strict=True):
        leaf[...] = before
    return any(changed)


def _require_inputs(how: Convention, inputs: Sequence[Key]) -> None:
    missing = [key for key in how.keys if key not in inputs]
    if missing:
        raise KeyError(f"the policy reads {missing}; the env writes {list(inputs)}")


def _first_answer(call: Call, inputs: list[torch.Tensor | None], memory: Memory) -> Any:
    try:
        with torch.no_grad():
            return call(inputs)
    except Exception as error:
        memory.explain(error)
        raise


def _mask_at(spec: HostSpec) -> int | None:
    keys = [leaf.key for leaf in spec.observation]
    return keys.index(ACTION_MASK) if ACTION_MASK in keys else None


def _zero_row(column: Column) -> Any:
    return (
        column.allocate(1)[:, 0] * 0 if isinstance(column.dtype, torch.dtype) else np.zeros(column.shape, column.dtype)
    )
