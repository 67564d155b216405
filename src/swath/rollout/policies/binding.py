"""From anything that users call a policy to one that is bound to a host.

Every choice is made once, from the host's spec and the policy's answer to the first observation; the way of a step has
no branches. Hosts of arrays and of TensorDicts part here: who is above need not know which of them it has. Random
actions are drawn uniformly from the action space: where there is no policy, and in the place of one.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import torch
from tensordict import TensorDictBase, is_leaf_nontensor

from swath.errors import noted
from swath.keys import ACTION_MASK, FLAGS, IS_INIT, STEP_COUNT, Key, as_key, as_tuple, is_private, under_next
from swath.rollout.buffer import Buffer, TensorDictBuffer
from swath.rollout.hosts.base import ArraySpec, HostSpec, TensorDictSpec, first_of
from swath.rollout.policies.answers import (
    Memory,
    blank_like,
    changed,
    copied,
    require_fitting,
    require_sources,
    taker,
    zeros_like,
)
from swath.rollout.policies.calling import Binding, BoundPolicy, caller, convention, exploring, the_policy
from swath.rollout.random_policy import RandomPolicy
from swath.rollout.spaces import Leaves

# Writes a policy's outputs into the TensorDict it is given, and returns that.
Write: TypeAlias = Callable[[TensorDictBase], TensorDictBase]


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
        require_sources([] if options.recurrent else unwritten, spec)
        inputs, take = (*spec.observed, *memory.keys), partial(taker, bare=bare)
        self.name, (self._call, self._outputs) = the_policy(policy), caller(policy, way, inputs, spec, options, take)
        self._elsewhere = None if options.device is None or options.device.type == "cpu" else options.device
        self._bare = bare
        given, unknown = [leaf.copy() for leaf in observation], len(memory.state)
        seen = ", ".join(f"{key!r} {leaf.shape}" for key, leaf in zip(spec.observed, observation, strict=True))
        state = f" and None for {[*memory.state]}, which the env does not give: taken for recurrent state"
        with noted(f"the first call of {self.name}, with {seen}{state if unknown else ''}"), torch.no_grad():
            flag = self._given(memory.leaves[unknown:])
            leaves = self._call([*self._given(given, copies=False), *[None] * unknown, *flag])
        # Whether the policy writes into what it gets.
        self._writes = any(leaf.tobytes() != seen.tobytes() for leaf, seen in zip(given, observation, strict=True))
        self._plain = not (bare or self._writes or self._elsewhere)
        require_sources([key for key in memory.state if under_next(key) not in self._outputs], spec)
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
        for key, leaf, form in zip(self._outputs, leaves, self._forms, strict=True):
            if leaf.dtype != form[0] or leaf.shape != form[1]:
                self.require_form(key, (leaf.dtype, leaf.shape), form)
        return leaves + self.memory.keep(leaves) if self.memory.keys else leaves

    def _given(self, leaves: Leaves, *, copies: bool = True) -> list[Any]:
        """Leaves `[B, …]` as tensors `[*B, …]` on the policy's device."""
        rows = [leaf[0, ...] for leaf in leaves] if self._bare else leaves
        tensors = [torch.as_tensor(row, device=self._elsewhere) for row in rows]
        return [*map(copied, tensors)] if copies and self._elsewhere is None else tensors


class TensorDictPolicy(BoundPolicy):
    """A policy bound to TensorDict envs, into whose only leaf it writes; arguments as those of `bind`.

    Whether an action is missing is the env's to say in its first step: a transform may make it of something else.

    Attributes:
        spec: the envs.
        draw: writes random actions in the policy's place; `None` if it acts itself.
        forms: dtype and shape of its outputs, by key.
        read: paths of the entries that it reads, as far as it says.
    """

    read: frozenset[tuple[str, ...]] = frozenset()

    def __init__(self, policy: Any, spec: TensorDictSpec, observation: Leaves, options: Binding) -> None:
        root = observation[0].clone()
        self.spec, self.explores, self.name = spec, True, the_policy(policy)
        self.draw: Write | None = None
        super().__init__((), [], Memory(spec.batch_shape))
        self._first: Write | None = None
        self._write = self._writing(policy, root, options)
        self._state = [under_next(key) for key in self.memory.state]
        self._with_memory(root)
        of_env = {*keys_of(root), *self.memory.keys}.difference(spec.acted)
        made = (self._first or self._write)(root)
        self.memory.learn(self._state, [made.get(key) for key in self._state])
        self.example = [self._with_memory(made)]
        keys = keys_of(made)
        self.forms = _forms(made, [key for key in keys if key not in of_env and not is_private(key)])
        self._groups = {as_tuple(key)[:depth] for key in keys for depth in range(len(as_tuple(key)))}
        self._known = self._names_in(made)

    def __call__(self, observation: Leaves) -> Leaves:
        """The TensorDict with the policy's outputs.

        Raises:
            TypeError, ValueError: they have another form than at construction.
        """
        made = (self.draw or self._write_checked)(self._with_memory(observation[0]))
        if self.memory.keys:
            self.memory.keep([made.get(key) for key in self._state])
        return [made]

    def take_over(self, other: TensorDictPolicy) -> None:
        """Go on from what the other remembers, with outputs of the form that the other's have."""
        super().take_over(other)
        self.example, self.forms, self._known = other.example, other.forms, other._known

    def _writing(self, policy: Any, root: TensorDictBase, options: Binding) -> Write:
        """How the policy writes into a TensorDict of the env, which may be elsewhere."""
        spec = self.spec
        if isinstance(policy, RandomPolicy):
            return spec.host.draw if policy.action_spec is None else partial(_drawn, policy.action_spec, spec.acted[0])
        take_spec = getattr(policy, "set_action_spec_from_env", None)  # of TorchRL's RandomPolicy
        if take_spec is not None and policy.action_spec is None:
            take_spec(first_of(spec.host.env))
        way = kind, read, self.explores = convention(policy, spec.observed, trust=options.trust)
        self.read, keys = frozenset(map(as_tuple, read)), keys_of(root)
        if kind == "tensordict":
            wanted = [key for key in read if key not in keys] if options.recurrent else []
            written = {as_tuple(key) for key in getattr(policy, "out_keys", None) or ()}
            self.memory = Memory(spec.batch_shape, [k for k in wanted if k == IS_INIT or under_next(k) in written])
            self._first = _elsewhere(policy, options.device, root.device) if options.first_plain else None
            return _elsewhere(exploring(policy, options.exploration), options.device, root.device)
        if kind == "single":  # transforms add the others beside the observation
            keys = tuple(key for key in spec.observed if as_tuple(key)[-1] not in (STEP_COUNT, IS_INIT))
        require_sources([key for key in read if key not in keys], spec)
        take = partial(torch.as_tensor, device=options.device or "cpu")
        call, outputs = caller(policy, way, keys, spec, options, lambda _, **__: take)

        def act(td: TensorDictBase) -> None:
            for value, key in zip(call([td.get(key) for key in keys]), outputs, strict=True):
                td.set(key, value)

        return _elsewhere(act, options.device, root.device)

    def _with_memory(self, root: TensorDictBase) -> TensorDictBase:
        for key, leaf in zip(self.memory.keys, self.memory.leaves, strict=True):
            if leaf is not None:
                root.set(key, torch.as_tensor(copied(leaf)))
            if key == IS_INIT:
                root.set(under_next(key), torch.zeros_like(root.get(key)))
        return root

    def _write_checked(self, root: TensorDictBase) -> TensorDictBase:
        """Call the policy, and check that it writes what it wrote at construction."""
        before = self._names_in(root)
        made = self._write(root)
        added = [as_key(path) for path in self._names_in(made) - before - self._known if not is_private(path)]
        if added:
            raise changed(self.name, f"also wrote {', '.join(map(str, added))}", self.forms)
        forms = _forms(made, self.forms)
        for key, form in forms.items() if forms != self.forms else ():
            then = self.forms[key]
            if form is None and then is not None:
                raise changed(self.name, f"did not write {key!r}", self.forms)
            seen, at_first = (_forms(td, self.spec.observed) for td in (made, self.example[0]))
            if form != then and (form[0] != then[0] or seen == at_first):  # else its shape may follow what it saw
                self.require_form(key, form, then)
        return made

    def _names_in(self, td: TensorDictBase) -> set[tuple[str, ...]]:
        """The names at the root of a TensorDict and in the groups that there were at construction."""
        groups = [(path, td.get(path, {}).keys() if path else td.keys()) for path in self._groups]
        return {(*path, name) for path, names in groups for name in names}


def keys_of(td: TensorDictBase) -> tuple[Key, ...]:
    """The keys of all leaves."""
    keys = td.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)
    return tuple(as_key(as_tuple(key)) for key in keys)


def _drawn(action_spec: Any, key: Key, root: TensorDictBase) -> TensorDictBase:
    """Write random actions, drawn from a spec that is given."""
    drawn = action_spec.rand()
    return root.update(drawn) if isinstance(drawn, TensorDictBase | Mapping) else root.set(key, drawn)


def _elsewhere(call: Callable[[TensorDictBase], Any], there: torch.device | None, home: torch.device | None) -> Write:
    """A policy that takes the TensorDict on the device `there`; it may write into it or return another.

    One that has no device sees a TensorDict that has none either, wherever the env is.
    """

    def write(root: TensorDictBase) -> TensorDictBase:
        given = root if there == home else root.copy().clear_device_() if there is None else root.to(there)
        answer = call(given)
        answer = given if answer is None else answer
        if there is not None and there != home:
            answer = answer.cpu().clear_device_() if home is None else answer.to(home)
        return root if answer is root else root.update(answer)

    return write


def _forms(td: TensorDictBase, keys: Iterable[Key]) -> dict[Key, Any]:
    """Dtype and shape of these entries; `None` if one is no tensor, or has other shapes from agent to agent."""
    forms = dict.fromkeys(keys)
    for key in forms:
        with suppress(RuntimeError):
            value = td.get(key, None)
            forms[key] = (value.dtype, value.shape) if isinstance(value, torch.Tensor) else None
    return forms


def randomly(spec: HostSpec, like: BoundPolicy) -> BoundPolicy:
    """Draw random actions in the place of this policy; what only it writes is NaN, or 0 where there is none.

    State that it is to read in its next step is 0.
    """
    if isinstance(spec, ArraySpec):
        return RandomActions(RandomPolicy(), spec, like)
    assert isinstance(like, TensorDictPolicy)
    own = [key for key in like.forms if key not in spec.acted and as_tuple(key)[-1] not in FLAGS]
    states = {*like.read, *map(under_next, like.read)}
    blanks = (
        like.example[0]
        .select(*own)
        .named_apply(lambda key, leaf: (zeros_like if as_tuple(key) in states else blank_like)(leaf), nested_keys=True)
    )
    stand_in = copy.copy(like)
    stand_in.draw = lambda root: spec.host.draw(root.update(blanks.clone()) if own else root)
    return stand_in


def is_called_by_torchrl(policy: Any, *, buffered: bool) -> bool:
    """Tell whether the constructor of TorchRL's collector calls this policy, and so draws from torch's generator.

    It does to learn the outputs: not of a policy whose specs name them all, nor, with a replay buffer, of one that has
    `out_keys`.

    Args:
        policy: a policy for a TorchRL env; `None` for random actions.
        buffered: whether the collector has a replay buffer.
    """
    keys = getattr(policy, "out_keys", None) or ()
    if buffered:
        return not keys
    spec = getattr(policy, "spec", None)
    if spec is None:
        return True
    specs = {as_tuple(key): leaf for key, leaf in spec.items(include_nested=True, leaves_only=True)}
    return None in specs.values() or any(as_tuple(key) not in specs for key in keys)


def buffer_for(policy: BoundPolicy, observation: Leaves, n_steps: int) -> Any:
    """Where T steps are written: a `Buffer`, or a `TensorDictBuffer`, which has the same methods."""
    if isinstance(policy, TensorDictPolicy):
        return TensorDictBuffer(policy.spec, policy.example[0], n_steps)
    return Buffer(observation, policy.example, n_steps)


def from_factory(build: Callable[..., Any], env: Any) -> Any:
    """What the factory builds; it gets the env if it has a required positional parameter or one named `env`.

    Raises:
        TypeError: it returned `None`.
        Exception: what the factory raised, with a note.
    """
    with noted(f"policy_factory {build!r}"):
        parameters = inspect.signature(build).parameters
        required = [each for each in parameters.values() if each.default is each.empty]
        if "env" in parameters and parameters["env"].kind is not inspect.Parameter.POSITIONAL_ONLY:
            policy = build(env=env)
        elif any(each.kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD for each in required):
            policy = build(env)
        else:
            policy = build()
    if policy is None:
        raise TypeError(f"policy_factory {build!r} returned None; it must return the policy")
    return policy


class RandomActions(BoundPolicy):
    """Random actions for a host of arrays.

    Args:
        policy: draws them.
        spec: the envs.
        like: the policy in whose place they are; what only that writes is NaN, and state or what has no NaN 0.
    """

    def __init__(self, policy: RandomPolicy, spec: ArraySpec, like: BoundPolicy | None = None) -> None:
        self._sample = policy.sampler(spec.action_space, spec.num_envs)
        self._mask_at = spec.observed.index(ACTION_MASK) if ACTION_MASK in spec.observed else None
        given = None if like is None else (like.keys, like.example, like.memory)
        super().__init__(*(given or (spec.acted, self._sample(None), Memory((spec.num_envs,)))))
        n_outputs = len(self.keys) - len(self.memory.keys)
        states = {*map(under_next, self.memory.state)}
        outputs = [*zip(self.keys, self.example, strict=True)][len(spec.action) : n_outputs]
        self._blanks = [zeros_like(leaf) if as_tuple(key) in states else blank_like(leaf) for key, leaf in outputs]

    def __call__(self, observation: Leaves) -> Leaves:
        """Draw actions, and add NaN for the other outputs, and what was remembered."""
        mask = None if self._mask_at is None else torch.from_numpy(observation[self._mask_at])
        outputs = [*self._sample(mask), *self._blanks]
        return [*outputs, *self.memory.keep(outputs)]
