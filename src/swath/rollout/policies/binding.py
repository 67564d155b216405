"""From anything that users call a policy to one that is bound to a host.

Every choice is made once, from the host's spec and the policy's answer to the first observation; the way of a step has
no branches. Hosts of arrays and of TensorDicts part here: who is above need not know which of them it has.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from gymnasium import spaces
from tensordict import TensorDictBase
from tensordict.nn import CudaGraphModule

from swath.keys import IS_INIT, STEP_COUNT, Key, as_key, as_tuple, is_private, under_next
from swath.rollout.buffer import Buffer, column_of
from swath.rollout.hosts.base import ArraySpec, HostSpec, TensorDictSpec
from swath.rollout.policies.calling import (
    UNLIKE,
    BoundPolicy,
    Convention,
    ExplorationType,
    Unpack,
    answered,
    caller,
    changed,
    convention,
    device_of,
    exploring,
    giver,
    require_same_form,
    taker,
    the_policy,
)
from swath.rollout.policies.random import RandomActions, RandomPolicy
from swath.rollout.policies.recurrent import Memory
from swath.rollout.policies.tensordicts import TensorDictPolicy, drawing, keys_of, writing
from swath.rollout.spaces import Leaves
from swath.rollout.tensordicts import TensorDictBuffer, blank_step

_UNNAMED = inspect.Parameter.POSITIONAL_ONLY
_POSITIONAL = (_UNNAMED, inspect.Parameter.POSITIONAL_OR_KEYWORD)

_SPEC_FROM_ENV = "set_action_spec_from_env"  # of TorchRL's RandomPolicy
_BESIDE = (STEP_COUNT, IS_INIT)
"""Entries that transforms add beside the observation."""

_KINDS = {"f": "f", "i": "iu", "u": "iu", "b": "b"}
"""Kinds of numpy dtypes that an action of each kind may come in."""


@dataclass(frozen=True)
class Binding:
    """How to bind a policy.

    Attributes:
        device: where its inputs go; `None` leaves them on the CPU.
        exploration: how it picks actions.
        trust: call it with the TensorDict, unchecked; `None` does so with CUDA graphs.
        recurrent: supply `is_init` and recurrent state where it reads them.
    """

    device: torch.device | None = None
    exploration: ExplorationType = ExplorationType.RANDOM
    trust: bool | None = None
    recurrent: bool = True


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
        return _bind_to_tensordicts(policy, spec, observation, options)
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
        how = convention(policy, spec.observed, trust=options.trust)
        unwritten = [key for key in how.keys if key not in spec.observed]
        memory = Memory((spec.num_envs,), unwritten if options.recurrent else ())
        if how.kind != "tensordict" and not options.recurrent:
            _require_sources(unwritten, spec)
        if (named := getattr(policy, "out_keys", None)) is not None:
            _require_sources(memory.missing_in([as_tuple(key) for key in named]), spec)
        inputs, batch = (*spec.observed, *memory.keys), (spec.batch_shape, options.device)
        self._name, self._call = the_policy(policy), caller(policy, how, inputs, batch, options.exploration)
        self._give, self._give_memory = giver(batch), giver(batch, torch.as_tensor, copies=True)
        given = [leaf.copy() for leaf in observation]
        answer = self._first_answer(given, memory)
        if any(leaf.tobytes() != before.tobytes() for leaf, before in zip(given, observation, strict=True)):
            self._give = giver(batch, copies=True)  # the policy writes into what it gets
        self._outputs, self._unpack = _unpacker(policy, answer, spec, inputs)
        _require_sources(memory.missing_in(self._outputs), spec)
        values, lead, n = self._unpack(answer), spec.batch_shape, len(spec.action)
        self._takes = [taker(lead, value, action=place < n) for place, value in enumerate(values)]
        leaves = [take(value) for take, value in zip(self._takes, values, strict=True)]
        self._forms = [(leaf.dtype, leaf.shape) for leaf in leaves]
        require_fitting(self._outputs, leaves, spec)
        memory.learn(self._outputs, leaves)
        columns = [column_of(leaf) for leaf in [*leaves, *memory.leaves]]
        super().__init__((*self._outputs, *memory.keys), columns, memory)
        self.explores, self._remembers = how.explores, bool(memory.keys)

    def __call__(self, observation: Leaves) -> Leaves:
        """Outputs for this observation, and what was remembered with it.

        Raises:
            TypeError: another kind of answer than at construction, or one with more or fewer outputs.
            ValueError: an output of another shape or kind of dtype.
        """
        inputs = self._give(observation)
        if self._remembers:
            inputs += self._give_memory(self.memory.leaves)
        answer = self._call(inputs)
        try:
            leaves = [take(value) for take, value in zip(self._takes, self._unpack(answer), strict=True)]
        except UNLIKE as error:
            raise changed(self._name, answered(answer), self._outputs) from error
        if [(leaf.dtype, leaf.shape) for leaf in leaves] != self._forms:
            for key, leaf, form in zip(self._outputs, leaves, self._forms, strict=True):
                require_same_form(self._name, key, leaf, form)
        if self._remembers:
            leaves += self.memory.keep(leaves)
        return leaves

    def _first_answer(self, observation: Leaves, memory: Memory) -> Any:
        """The answer to the first observation, before which the shape of the state is unknown."""
        unknown = len(memory.state)
        flag = self._give_memory(memory.leaves[unknown:])
        try:
            with torch.no_grad():
                return self._call([*self._give(observation), *[None] * unknown, *flag])
        except Exception as error:
            if unknown:
                error.add_note(
                    f"the env does not write {list(memory.state)}; a recurrent policy gets None for them in its first "
                    "call, to learn their shape"
                )
            raise


def randomly(spec: HostSpec, like: BoundPolicy) -> BoundPolicy:
    """Random actions in the place of this policy; what only it writes is zero, so that keys stay."""
    if isinstance(like, TensorDictPolicy):
        return like.randomly()
    assert isinstance(spec, ArraySpec)
    return RandomActions(RandomPolicy(), spec, like)


def buffer_for(policy: BoundPolicy, observation: Leaves, n_steps: int) -> Any:
    """Where T steps are written: a `Buffer`, or a `TensorDictBuffer`, which has the same methods."""
    if isinstance(policy, TensorDictPolicy):
        return TensorDictBuffer(policy.spec, blank_step(policy.spec, policy.example), n_steps)
    return Buffer([column_of(leaf) for leaf in observation], policy.columns, n_steps)


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


def require_fitting(keys: Sequence[Key], leaves: Leaves, spec: ArraySpec) -> None:
    """Check outputs `[B, …]` against the envs.

    Raises:
        TypeError: no numbers, or an action of the wrong dtype.
        ValueError: not one row per env, or an action of the wrong shape.
    """
    n, lead = spec.num_envs, spec.batch_shape
    for leaf, value in zip(spec.action, leaves, strict=False):
        wanted, got = (*lead, *leaf.shape), tuple(value.shape if lead else value.shape[1:])
        if wanted != got:
            where = f"with batch shape {lead}" if lead else "of one env alone"
            raise ValueError(
                f"the policy's {leaf.key!r} has shape {got}; {leaf.space} {where} wants {wanted}: "
                "it must answer with one action per env, for instance sampled from its logits"
            )
        kinds = _KINDS[leaf.dtype.kind] + ("b" if isinstance(leaf.space, spaces.MultiBinary) else "")
        if value.dtype.kind not in kinds:
            raise TypeError(f"the policy's {leaf.key!r} has dtype {value.dtype}; {leaf.space} wants {leaf.dtype}")
    for key, value in zip(keys, leaves, strict=True):
        if not isinstance(value, torch.Tensor) and value.dtype.kind not in "biufc":
            odd = value.reshape(-1)[0]
            raise TypeError(f"the policy's {key!r} is {odd!r}; it must be a tensor, an array or a number")
        if tuple(value.shape[:1]) != (n,):
            raise ValueError(
                f"the policy's {key!r} has shape {tuple(value.shape)}; it must begin with the batch shape {lead}, one "
                "row per env"
            )


def _require_sources(missing: Sequence[Key], spec: HostSpec) -> None:
    if missing:
        raise KeyError(
            f"the policy reads {[*missing]}; the env writes {[*spec.observed]}; what a policy remembers it must write "
            "under 'next'"
        )


# ---- envs of TensorDicts


def _bind_to_tensordicts(policy: Any, spec: TensorDictSpec, observation: Leaves, options: Binding) -> BoundPolicy:
    name, memory = the_policy(policy), Memory(spec.batch_shape)
    if isinstance(policy, RandomPolicy):
        write = drawing(spec, policy.action_spec)
        return TensorDictPolicy(name, write, spec, memory, observation, explores=True)
    root = observation[0]
    if getattr(policy, "action_spec", policy) is None and callable(getattr(policy, _SPEC_FROM_ENV, None)):
        getattr(policy, _SPEC_FROM_ENV)(spec.env())
    how = convention(policy, spec.observed, trust=options.trust)
    call = exploring(policy, options.exploration)
    if how.kind != "tensordict":
        call = _on_tensordicts(policy, how, spec, root, options)
    elif options.recurrent:
        there = [as_key(as_tuple(key)) for key in root.keys(include_nested=True)]
        written = [as_tuple(key) for key in getattr(policy, "out_keys", None) or ()]
        unwritten = [key for key in how.keys if key not in there]
        memory = Memory(spec.batch_shape, [k for k in unwritten if k == IS_INIT or under_next(k) in written])
    write = writing(call, options.device, root.device)
    return TensorDictPolicy(name, write, spec, memory, observation, explores=how.explores)


def _on_tensordicts(
    policy: Any, how: Convention, spec: TensorDictSpec, example: TensorDictBase, options: Binding
) -> Callable[[TensorDictBase], TensorDictBase]:
    """A policy that takes and gives tensors, as one that writes into a TensorDict."""
    keys: tuple[Key, ...] = keys_of(example)
    if how.kind == "single":
        keys = tuple(key for key in spec.observed if as_tuple(key)[-1] not in _BESIDE)
    _require_sources([key for key in how.keys if key not in keys], spec)
    call = caller(policy, how, keys, (spec.batch_shape, options.device), options.exploration)

    def answer_to(td: TensorDictBase) -> Any:
        return call([td.get(key) for key in keys])

    given = example.clone() if options.device is None else example.to(options.device)
    name, (outs, unpack) = the_policy(policy), _unpacker(policy, answer_to(given), spec, keys)

    def act(td: TensorDictBase) -> TensorDictBase:
        answer = answer_to(td)
        try:
            for key, value in zip(outs, unpack(answer), strict=True):
                td.set(key, torch.as_tensor(value, device=td.device or "cpu"))
        except UNLIKE as error:
            raise changed(name, answered(answer), outs) from error
        return td

    return act


# ---- what it answers


def _unpacker(policy: Any, answer: Any, spec: HostSpec, inputs: Sequence[Key]) -> tuple[tuple[Key, ...], Unpack]:
    """Names of the policy's outputs, action leaves first, and how to get at them in an answer like this one.

    Raises:
        KeyError: there is no action among them.
        TypeError: there is no answer.
        ValueError: a tuple that does not fit the policy's `out_keys`.
    """
    actions = spec.acted
    if answer is None:
        raise TypeError(f"the policy returned None; it must return the actions {[*actions]}: is a `return` missing?")
    if not isinstance(answer, tuple | Mapping):
        if len(actions) > 1:
            raise KeyError(f"the policy returned one {type(answer).__name__}, the env wants the actions {[*actions]}")
        return actions, lambda value: [value]
    names = _names_of(policy, len(answer), actions) if isinstance(answer, tuple) else None
    known = frozenset(inputs)

    def by_key(given: Any) -> dict[Key, Any]:
        return _outputs_in(given, known) if names is None else dict(zip(names, given, strict=True))

    first = by_key(answer)
    found = [key for key in first if not is_private(key)]
    missing = [key for key in actions if key not in found]
    if missing:
        raise KeyError(f"the policy must answer with the action {missing}; it answered with {found}")
    keys, n_outputs = (*actions, *(key for key in found if key not in actions)), len(first)

    def unpack(given: Any) -> list[Any]:
        outputs = by_key(given)
        if len(outputs) != n_outputs:
            raise KeyError(f"{n_outputs} outputs at construction")
        return [outputs[key] for key in keys]

    return keys, list if names == [*keys] else unpack


def _names_of(policy: Any, count: int, actions: Sequence[Key]) -> list[Key]:
    """Names of the values of a tuple: the policy's `out_keys`, or the actions and numbers."""
    named = getattr(policy, "out_keys", None)
    if named is None:
        return [*actions, *(f"output{i}" for i in range(1, count - len(actions) + 1))][:count]
    if len(named) != count:
        raise ValueError(f"the policy returned {count} values for its out_keys {list(named)}")
    return [as_key(as_tuple(key)) for key in named]


def _outputs_in(answer: Any, inputs: Collection[Key], group: tuple[str, ...] = ()) -> dict[Key, Any]:
    """Leaves by key, but inputs; keys of a plain dict may be nested, tuples or both."""
    found: dict[Key, Any] = {}
    for name, value in answer.items():
        key = name if isinstance(name, str) and not group else as_key((*group, *as_tuple(name)))
        if isinstance(value, Mapping):
            found |= _outputs_in(value, inputs, as_tuple(key))
        elif key not in inputs:
            found[key] = value
    return found
