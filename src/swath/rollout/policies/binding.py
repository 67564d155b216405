"""From anything that users call a policy to one that is bound to a host.

Every choice is made once, from the host's spec and the policy's answer to the first observation; the way of a step has
no branches. Hosts of arrays and of TensorDicts part here: who is above need not know which of them it has.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from tensordict.nn import CudaGraphModule

from swath.keys import as_tuple, under_next
from swath.rollout.buffer import Buffer
from swath.rollout.hosts.base import ArraySpec, HostSpec, TensorDictSpec
from swath.rollout.policies.answers import require_fitting, require_same_form, require_sources, taker
from swath.rollout.policies.calling import Binding, BoundPolicy, caller, convention, device_of, the_policy
from swath.rollout.policies.random import RandomActions, RandomPolicy
from swath.rollout.policies.recurrent import Memory, copied
from swath.rollout.policies.tensordicts import TensorDictPolicy
from swath.rollout.spaces import Leaves
from swath.rollout.tensordicts import TensorDictBuffer, blank_step

_UNNAMED = inspect.Parameter.POSITIONAL_ONLY
_POSITIONAL = (_UNNAMED, inspect.Parameter.POSITIONAL_OR_KEYWORD)


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
    policy = RandomPolicy() if policy is None else policy
    if isinstance(spec, TensorDictSpec):
        return TensorDictPolicy(policy, spec, observation, options)
    if not isinstance(policy, RandomPolicy):
        return ArrayPolicy(policy, spec, observation, options)
    drawn = RandomActions(policy, spec)
    leaves = drawn(observation)  # tried once: the space that they are drawn from may be the user's own
    if len(leaves) != len(spec.action):
        raise ValueError(f"{policy.action_spec} has {len(leaves)} leaves, {spec.action_space} wants {len(spec.action)}")
    require_fitting(drawn.keys, leaves, spec)
    return drawn


class ArrayPolicy(BoundPolicy):
    """A policy bound to a host of arrays; arguments as those of `bind`."""

    def __init__(self, policy: Any, spec: ArraySpec, observation: Leaves, options: Binding) -> None:
        way = _, read, self.explores = convention(policy, spec.observed, trust=options.trust)
        bare, unwritten = not spec.batch_shape, [key for key in read if key not in spec.observed]
        memory = Memory((spec.num_envs,), unwritten if options.recurrent else ())
        named = getattr(policy, "out_keys", None) or map(under_next, memory.state)
        require_sources(memory.missing_in([*map(as_tuple, named)]) if options.recurrent else unwritten, spec)
        inputs, take = (*spec.observed, *memory.keys), partial(taker, bare=bare)
        self._name, (self._call, self._outputs) = the_policy(policy), caller(policy, way, inputs, spec, options, take)
        self._elsewhere = None if options.device is None or options.device.type == "cpu" else options.device
        self._bare = bare
        given, unknown = [leaf.copy() for leaf in observation], len(memory.state)
        try:
            with torch.no_grad():
                flag = self._given(memory.leaves[unknown:])
                leaves = self._call([*self._given(given, copies=False), *[None] * unknown, *flag])
        except Exception as error:
            if unknown:
                reads = f"the env does not write {list(memory.state)}; a recurrent policy gets None for them"
                error.add_note(f"{reads} in its first call, to learn their shape")
            raise
        # Whether the policy writes into what it gets.
        self._writes = any(leaf.tobytes() != seen.tobytes() for leaf, seen in zip(given, observation, strict=True))
        self._plain = not (bare or self._writes or self._elsewhere)
        require_sources(memory.missing_in(self._outputs), spec)
        require_fitting(self._outputs, leaves, spec)
        self._forms = [(leaf.dtype, leaf.shape) for leaf in leaves]
        memory.learn(self._outputs, leaves)
        super().__init__((*self._outputs, *memory.keys), [*leaves, *memory.leaves], memory)

    def __call__(self, observation: Leaves) -> Leaves:
        """Outputs for this observation, and what was remembered with it.

        Raises:
            TypeError: another kind of answer than at construction, or one with more or fewer outputs.
            ValueError: an output of another shape or kind of dtype.
        """
        inputs = [*map(torch.from_numpy, observation)] if self._plain else self._given(observation, copies=self._writes)
        if self.memory.keys:
            inputs += self._given(self.memory.leaves)
        leaves = self._call(inputs)
        forms = [(leaf.dtype, leaf.shape) for leaf in leaves]
        if forms != self._forms:
            for key, form, then in zip(self._outputs, forms, self._forms, strict=True):
                require_same_form(self._name, key, form, then)
        return leaves + self.memory.keep(leaves) if self.memory.keys else leaves

    def _given(self, leaves: Leaves, *, copies: bool = True) -> list[Any]:
        """Leaves `[B, …]` as tensors `[*B, …]` on the policy's device."""
        if self._bare:
            leaves = [leaf[0, ...] for leaf in leaves]
        tensors = [torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
        if self._elsewhere is not None:
            return [tensor.to(self._elsewhere) for tensor in tensors]
        return [*map(copied, tensors)] if copies else tensors


def randomly(spec: HostSpec, like: BoundPolicy) -> BoundPolicy:
    """Random actions in the place of this policy; what only it writes is zero, so that keys stay."""
    if isinstance(like, TensorDictPolicy):
        return like.randomly()
    assert isinstance(spec, ArraySpec)
    return RandomActions(RandomPolicy(), spec, like)


def buffer_for(policy: BoundPolicy, observation: Leaves, n_steps: int) -> Any:
    """Where T steps are written: a `Buffer`, or a `TensorDictBuffer`, which has the same methods."""
    if isinstance(policy, TensorDictPolicy):
        return TensorDictBuffer(policy.spec, blank_step(policy.spec, policy.example[0]), n_steps)
    return Buffer(observation, policy.example, n_steps)


def compiled(policy: Any, compile_policy: Any, cudagraph_policy: Any) -> Any:
    """The policy as compiled, or captured in a CUDA graph, if that is asked for.

    Raises:
        ValueError: a CUDA graph for a policy that is not on CUDA; neither yes nor no nor options; a random policy.
    """
    for name, value in (("compile_policy", compile_policy), ("cudagraph_policy", cudagraph_policy)):
        given, acts = type(value).__name__, type(policy).__name__
        if not (value is None or isinstance(value, bool | Mapping)):
            raise ValueError(f"{name}={value!r} is of type {given}; it must be True, False or a dict of options")
        if asked_for(value) and not callable(policy):
            raise ValueError(f"{name} needs a policy that is called, and this is of type {acts}; leave it out")
    if asked_for(compile_policy):
        policy = torch.compile(policy, **({} if compile_policy is True else compile_policy))
    if asked_for(cudagraph_policy):
        device = device_of(policy)
        if device is None or device.type != "cuda":
            raise ValueError("cudagraph_policy needs a policy on CUDA; leave it out, or set policy_device='cuda'")
        policy = CudaGraphModule(policy, **({} if cudagraph_policy is True else cudagraph_policy))
    return policy


def asked_for(value: Any) -> bool:
    """Whether this is `True` or options, of which there may be none."""
    return isinstance(value, Mapping) or bool(value)


def from_factory(build: Callable[..., Any], env: Any) -> Any:
    """What the factory builds; it gets the env if it has a required positional parameter or one named `env`.

    Raises:
        TypeError: it returned `None`.
        Exception: what the factory raised, with a note.
    """
    try:
        parameters = inspect.signature(build).parameters
        if "env" in parameters and parameters["env"].kind is not _UNNAMED:
            policy = build(env=env)
        elif any(p.kind in _POSITIONAL and p.default is p.empty for p in parameters.values()):
            policy = build(env)
        else:
            policy = build()
    except Exception as error:
        error.add_note(f"raised while policy_factory {build!r} built the policy")
        raise
    if policy is None:
        raise TypeError(f"policy_factory {build!r} returned None; it must return the policy")
    return policy
