"""From anything that users call a policy to one that is bound to a host.

Every choice is made once, from the host's spec and the policy's answer to the first observation; the way of a step has
no branches. Hosts of arrays and of TensorDicts part here: who is above need not know which of them it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from swath.keys import Key
from swath.rollout.buffer import Buffer, column_of
from swath.rollout.hosts.specs import ArraySpec, HostSpec, TensorDictSpec
from swath.rollout.policies.answers import require_fitting, unpacker
from swath.rollout.policies.binding import Binding
from swath.rollout.policies.bound import BoundPolicy, Feedforward, Pipeline
from swath.rollout.policies.calling import Call, Convention, caller, convention
from swath.rollout.policies.finite import require_finite_leaves
from swath.rollout.policies.placement import action_taker, copying, giver, taker
from swath.rollout.policies.random_actions import RandomActions
from swath.rollout.policies.random_policy import RandomPolicy
from swath.rollout.policies.recurrent import Memory, Recurrent
from swath.rollout.policies.tensordicts import TensorDictActor, TensorDictRandomly, bind_tensordict
from swath.rollout.spaces import Leaves
from swath.rollout.tensordicts import TensorDictBuffer, blank_step


def randomly(spec: HostSpec, like: BoundPolicy) -> BoundPolicy:
    """Random actions in the place of this policy."""
    if isinstance(spec, TensorDictSpec):
        return TensorDictRandomly(spec, _for_tensordicts(like))
    return RandomActions(RandomPolicy(), spec, like=like)


def buffer_for(spec: HostSpec, policy: BoundPolicy, observation: Leaves, n_steps: int) -> Any:
    """Where T steps are written: a `Buffer`, or a `TensorDictBuffer`, which has the same methods."""
    if isinstance(spec, TensorDictSpec):
        return TensorDictBuffer(spec, blank_step(spec, _for_tensordicts(policy).example), n_steps)
    return Buffer([column_of(leaf) for leaf in observation], policy.columns, n_steps)


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
    env_keys = spec.observed
    how = convention(policy, env_keys, trust=options.trust)
    memory = Memory.of(_read(policy, how), env_keys) if options.recurrent else Memory()
    memory.require_written(getattr(policy, "out_keys", None))
    inputs = [*env_keys, *memory.inputs]
    _require_inputs(how, inputs)
    batch = (spec.batch_shape, options.device)
    give = giver(*batch)
    call = caller(policy, how, inputs, batch, options.exploration)
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
    if options.finite:
        require_finite_leaves("policy output", keys, leaves)
    pipeline = Pipeline(give, call, unpack, takes, how.explores)
    if not memory.inputs:
        return Feedforward(pipeline, keys, tuple(column_of(leaf) for leaf in leaves))
    return Recurrent(pipeline, keys, (values, leaves), memory, batch)


def _for_tensordicts(policy: BoundPolicy) -> TensorDictActor:
    assert isinstance(policy, TensorDictActor), f"{policy} was bound to a host of arrays"
    return policy


def _random(policy: RandomPolicy, spec: ArraySpec, observation: Leaves) -> BoundPolicy:
    """Random actions, tried once: the spec that they are drawn from may be the user's own."""
    bound = RandomActions(policy, spec)
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
