"""Binding of policies of any kind to a host.

All choices are made once, from the host's spec and the policy's answer to the first observation; a step has no
branches. Callers need not know whether their host is of arrays or of TensorDicts. Random actions are drawn uniformly
from the action space, without a policy or in place of one.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import torch
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor

from swath.errors import note_source
from swath.keys import ACTION_MASK, FLAGS, IS_INIT, STEP_COUNT, TRAJ_IDS, Key, as_key, as_tuple, is_private, under_next
from swath.options import FinalObservation
from swath.rollout.buffer import Buffer, TensorDictBuffer, set_all
from swath.rollout.hosts.base import ArraySpec, HostSpec, TensorDictSpec, first_env
from swath.rollout.infos import InfoReader
from swath.rollout.memory import as_tensor, blank_like, copy_leaf, equal, zeros_like
from swath.rollout.plans import plans_mode
from swath.rollout.policies.calling import (
    BindingOptions,
    BoundPolicy,
    CallConvention,
    find_convention,
    make_caller,
    policy_name,
    weights_device,
    with_exploration,
)
from swath.rollout.policies.outputs import (
    Memory,
    changed_error,
    leaf_converter,
    require_fitting,
    require_no_missing,
)
from swath.rollout.policies.plan import PlannedCall
from swath.rollout.policies.tracing import PlanSetting
from swath.rollout.random_policy import RandomPolicy
from swath.rollout.seeding import GeneratorStates
from swath.rollout.spaces import Leaves

# Writes a policy's outputs into the TensorDict it is given, and returns that.
Write: TypeAlias = Callable[[TensorDictBase], TensorDictBase]


def bind(policy: Any, spec: HostSpec, observation: Leaves, options: BindingOptions) -> BoundPolicy:
    """Bind a policy to a host. A call of the policy on the first observation shows the form of its outputs.

    The caller restores random states. Gradients are off.

    Args:
        policy: `None`, a `RandomPolicy`, a TensorDict module, an `nn.Module` or a callable.
        spec: properties of the host's envs.
        observation: leaves `[B, …]` of the first reset.
        options: device, exploration type, trust, recurrence.

    Raises:
        TypeError: it cannot be called, or its action has the wrong dtype.
        KeyError: an entry that it reads, or the action, is missing.
        ValueError: its action has the wrong shape.
    """
    policy = RandomPolicy() if policy is None else policy
    if isinstance(spec, TensorDictSpec):
        return TensorDictPolicy(policy, spec, observation, options)
    if not isinstance(policy, RandomPolicy):
        return ArrayPolicy(policy, spec, observation, options)
    random_actions = RandomActions(policy, spec)
    leaves = random_actions(observation)  # a trial, since the user may have passed the space to draw from
    if len(leaves) != len(spec.action):
        raise ValueError(f"{policy.action_spec} has {len(leaves)} leaves, {spec.action_space} wants {len(spec.action)}")
    require_fitting(random_actions.keys, leaves, spec)
    return random_actions


class ArrayPolicy(BoundPolicy):
    """A policy bound to a host of arrays; see `bind` for the arguments."""

    def __init__(self, policy: Any, spec: ArraySpec, observation: Leaves, options: BindingOptions) -> None:
        convention = _, read, self.explores = find_convention(policy, spec.observation_keys, trust=options.trust)
        unwritten = [key for key in read if key not in spec.observation_keys]
        require_no_missing([] if options.recurrent else unwritten, spec)
        memory = Memory((spec.num_envs,), unwritten if options.recurrent else (), spec.tensor_device)
        self.name, self._bare = policy_name(policy), not spec.batch_shape
        self._device = None if options.device is None or options.device.type == "cpu" else options.device
        if spec.of_tensors:  # a function takes tensors where they are
            self._device = options.device or weights_device(policy)
        self._writes, states = False, GeneratorStates(options.device) if options.owns_generators else None
        first_call = partial(self._first_call, policy, convention, spec, observation, options)
        outputs, leaves = first_call(memory)
        if private := [key for key in outputs if is_private(key)]:
            supplies = supplies_init(spec, options)
            memory = Memory((spec.num_envs,), memory.keys, spec.tensor_device, private, supplies_init=supplies)
            if states is not None:
                states.restore()
            outputs, leaves = first_call(memory)
        self._plain, n_public = not (self._writes or self._device), len(outputs) - len(private)
        self._outputs, leaves = outputs[:n_public], leaves[:n_public]
        require_no_missing([key for key in memory.state if under_next(key) not in self._outputs], spec)
        require_fitting(self._outputs, leaves, spec)
        self._forms = [(leaf.dtype, leaf.shape) for leaf in leaves]
        memory.initialize(self._outputs, leaves)
        leaves += memory.leaves[: len(memory.shown)]
        super().__init__((*self._outputs, *memory.shown), leaves, memory)

    def _first_call(
        self,
        policy: Any,
        convention: CallConvention,
        spec: ArraySpec,
        observation: Leaves,
        options: BindingOptions,
        memory: Memory,
    ) -> tuple[Sequence[Key], Leaves]:
        """Make the function that calls the policy, and return the keys and leaves of its first answer."""
        keys = (*spec.observation_keys, *memory.keys)
        converter = partial(leaf_converter, bare=self._bare, device=spec.tensor_device)
        call, outputs, planned = make_caller(policy, convention, keys, spec, options, converter, memory.private)
        copies, n_state = [copy_leaf(leaf) for leaf in observation], len(memory.state)
        pairs = zip(spec.observation_keys, observation, strict=True)
        shapes = ", ".join(f"{key!r} {leaf.shape}" for key, leaf in pairs)
        state = f" and None for {[*memory.state]}, which the env does not give: taken for recurrent state"
        with note_source(f"the first call of {self.name}, with {shapes}{state if n_state else ''}"), torch.no_grad():
            is_init = self._to_tensors(memory.leaves[n_state:])
            leaves = call([*self._to_tensors(copies, copy=False), *[None] * n_state, *is_init, *memory.kept])
        self._call, self.planned = call, planned
        # Whether the policy writes into its inputs.
        self._writes |= not all(map(equal, copies, observation))
        return outputs, leaves

    def __call__(self, observation: Leaves) -> Leaves:
        """Return outputs for this observation, and the recurrent state that the policy has read.

        Raises:
            TypeError: another kind of answer than at construction, or one with more or fewer outputs.
            ValueError: an output of another shape or kind of dtype.
        """
        if self._plain:
            inputs = [as_tensor(leaf[0, ...]) for leaf in observation] if self._bare else [*map(as_tensor, observation)]
        else:
            inputs = self._to_tensors(observation, copy=self._writes)
        if self.memory.keys:
            inputs += self._to_tensors(self.memory.leaves)
        memory = self.memory
        leaves = memory.keep(self._call(inputs + memory.kept)) if memory.private else self._call(inputs)
        for key, leaf, form in zip(self._outputs, leaves, self._forms, strict=True):
            if leaf.dtype != form[0] or leaf.shape != form[1]:
                self.require_form(key, (leaf.dtype, leaf.shape), form)
        return leaves + self.memory.update(leaves) if self.memory.keys else leaves

    def _to_tensors(self, leaves: Leaves, *, copy: bool = True) -> list[Any]:
        """Return leaves `[B, …]` as tensors `[*B, …]` on the policy's device."""
        rows = [leaf[0, ...] for leaf in leaves] if self._bare else leaves
        tensors = [torch.as_tensor(row, device=self._device) for row in rows]
        return [*map(copy_leaf, tensors)] if copy and self._device is None else tensors


class TensorDictPolicy(BoundPolicy):
    """A policy bound to TensorDict envs, which writes into their only leaf; see `bind` for the arguments.

    The env raises in its first step if an action is missing: a transform may compute the action from other outputs.

    Attributes:
        policy: the policy.
        spec: properties of the envs.
        draw: writes random actions in place of the policy; `None` to call the policy.
        forms: dtype and shape of its outputs, by key.
        read: paths of the entries that it declares to read.
    """

    read: frozenset[tuple[str, ...]] = frozenset()

    def __init__(self, policy: Any, spec: TensorDictSpec, observation: Leaves, options: BindingOptions) -> None:
        root = observation[0].clone()
        self.policy, self.spec, self.explores, self.name = policy, spec, True, policy_name(policy)
        self.draw: Write | None = None
        super().__init__((), [], Memory(spec.batch_shape))
        self._first: Write | None = None
        self._may_plan, self._declared = False, set[Key]()
        self._planned_keys, self._planned_groups = list[Key](), set[tuple[str, ...]]()
        self._write = self._make_write(policy, root, options)
        self._state = [under_next(key) for key in self.memory.state]
        self._add_memory(root)
        before = keys_of(root)
        if self._first is None and self.planned is not None:
            root = self._write_by_plan(root, self.planned)
        else:
            root = (self._first or self._write)(root)
        if not spec.hands_on:
            self._keep([key for key in keys_of(root) if is_private(key) and key not in before], options)
        self.memory.initialize(self._state, [root.get(key) for key in self._state])
        self.example = [self._drop_hidden(self._add_memory(root))]
        keys, env_keys = keys_of(root), {*before, *self.memory.keys, under_next(IS_INIT)}
        added = [key for key in keys if key in spec.action_keys or key not in env_keys]
        self.forms = _forms(root, [key for key in added if not is_private(key)])
        if any(is_private(key) or key not in self._declared for key in added):  # it may read them in its next call
            self.planned = None
        self._groups = {as_tuple(key)[:depth] for key in keys for depth in range(len(as_tuple(key)))}
        self._known = self._names_in(root)
        self._planned_names = self._names_in(observation[0])

    def __call__(self, observation: Leaves) -> Leaves:
        """Return the TensorDict with the policy's outputs.

        Raises:
            TypeError, ValueError: they have another form than at construction.
        """
        root = (self.draw or self._write_checked)(self._add_memory(observation[0]))
        if self.memory.keys:
            self.memory.update([root.get(key) for key in self._state])
        if self.memory.private:
            self.memory.keep([root.get(key, None) for key in self.memory.private])
        return [self._drop_hidden(root)]

    def take_over(self, other: TensorDictPolicy) -> None:
        """Take over the recurrent state and the form of the outputs of another policy."""
        super().take_over(other)
        self.example, self.forms, self._known = other.example, other.forms, other._known

    def private_entries(self, root: TensorDictBase) -> dict[Key, Any]:
        """Return the entries that the policy has written for its next call, which gets this root."""
        if self.memory.private:
            return dict(zip(self.memory.private, self.memory.kept, strict=True))
        return {key: root.get(key) for key in keys_of(root) if is_private(key)}

    def set_private_entries(self, root: TensorDictBase, entries: Mapping[Key, Any]) -> None:
        """Set the entries that the policy has written for its next call, which gets this root."""
        if self.memory.private:
            self.memory.kept = [entries.get(key) for key in self.memory.private]
        else:
            set_all(root, {key: value.clone() for key, value in entries.items() if value is not None})

    def renew_plan(self) -> None:
        """Make a plan with the next call, if there is none or the policy has changed."""
        super().renew_plan()
        self._may_plan = True

    def _make_write(self, policy: Any, root: TensorDictBase, options: BindingOptions) -> Write:
        """Return a function that lets the policy write into a TensorDict of the env, on whatever device."""
        spec = self.spec
        if isinstance(policy, RandomPolicy) and policy.action_spec is None:
            return spec.host.draw  # type: ignore[no-any-return]
        if isinstance(policy, RandomPolicy):
            return partial(_write_random, policy.action_spec, spec.action_keys[0])
        set_spec = getattr(policy, "set_action_spec_from_env", None)  # a method of TorchRL's RandomPolicy
        if set_spec is not None and policy.action_spec is None:
            set_spec(first_env(spec.host.env))
        convention = kind, read, self.explores = find_convention(policy, spec.observation_keys, trust=options.trust)
        self.read, keys = frozenset(map(as_tuple, read)), keys_of(root)
        if kind == "tensordict":
            missing = [key for key in read if key not in keys] if options.recurrent else []
            out_keys = {as_tuple(key) for key in getattr(policy, "out_keys", None) or ()}
            self.memory = Memory(spec.batch_shape, [k for k in missing if k == IS_INIT or under_next(k) in out_keys])
            self._first = _on_device(policy, options.device, root.device) if options.first_in_current_mode else None
            write = _on_device(with_exploration(policy, options.exploration), options.device, root.device)
            if options.plans and plans_mode() != "off" and options.device in (None, root.device):
                self.planned = self._plan(policy, write, root, options)
            return write
        if kind == "single":  # transforms add other entries to the observation
            keys = tuple(key for key in spec.observation_keys if as_tuple(key)[-1] not in (STEP_COUNT, IS_INIT))
        require_no_missing([key for key in read if key not in keys], spec)
        to_leaf = partial(torch.as_tensor, device=options.device or "cpu")
        call, outputs, _ = make_caller(policy, convention, keys, spec, options, lambda _, **__: to_leaf)

        def act(td: TensorDictBase) -> None:
            for value, key in zip(call([td.get(key) for key in keys]), outputs, strict=True):
                td.set(key, value)

        return _on_device(act, options.device, root.device)

    def _plan(self, policy: Any, write: Write, root: TensorDictBase, options: BindingOptions) -> PlannedCall | None:
        """Return the planned call of the policy for the entries of a root; `None` if a plan cannot take them."""
        keys = self._planned_keys = [*keys_of(root)]
        self._planned_groups = {as_tuple(key)[:depth] for key in keys for depth in range(1, len(as_tuple(key)))}
        written = self._declared = {as_key(as_tuple(key)) for key in getattr(policy, "out_keys", None) or ()}
        if self.memory.keys or not written.isdisjoint(keys) or not self._has_plain_groups(root):
            return None
        if not all(type(root.get(key)) is torch.Tensor for key in keys):
            return None
        structure = root.empty(recurse=True)

        def plain(*entries: Any, earlier: Iterable[tuple[Key, Any]] = ()) -> TensorDictBase:
            return write(set_all(structure.empty(recurse=True), dict([*zip(keys, entries, strict=True), *earlier])))

        set_exploration = partial(with_exploration, exploration=options.exploration)
        setting = (tuple(keys), tuple(root.batch_size), options.device, options.exploration, options.owns_generators)
        return PlannedCall(policy, plain, set_exploration, PlanSetting(*setting, self.spec.hands_on))

    def _has_plain_groups(self, root: TensorDictBase) -> bool:
        """Tell whether the root and its groups are no lazy stacks."""
        return type(root) is TensorDict and all(type(root.get(path)) is TensorDict for path in self._planned_groups)

    def _write_by_plan(self, root: TensorDictBase, planned: PlannedCall) -> TensorDictBase:
        """Call the policy by its plan, or make the plan, and write the outputs into the root."""
        entries = [root.get(key) for key in self._planned_keys]
        outputs = planned(*entries)
        if type(outputs) is dict:
            return set_all(root, outputs)
        if any(outputs.get(key) is not value for key, value in zip(self._planned_keys, entries, strict=True)):
            self.planned = None  # the policy replaces an entry of the env
        return root.update(outputs)

    def _keep(self, private: Sequence[Key], options: BindingOptions) -> None:
        """Keep private entries that the policy writes, which the env does not hand on to its next call."""
        if private:
            supplies, read = supplies_init(self.spec, options), self.memory.keys
            self.memory = Memory(self.spec.batch_shape, read, private=private, supplies_init=supplies)

    def _drop_hidden(self, root: TensorDictBase) -> TensorDictBase:
        """Delete the `is_init` that was supplied for private entries."""
        if self.memory.shown != self.memory.keys:
            del root[IS_INIT]
        return root

    def _add_memory(self, root: TensorDictBase) -> TensorDictBase:
        for key, leaf in zip(self.memory.keys, self.memory.leaves, strict=True):
            if leaf is not None:
                root.set(key, torch.as_tensor(copy_leaf(leaf)))
            if key == IS_INIT and key in self.memory.shown:
                root.set(under_next(key), torch.zeros_like(root.get(key)))
        for key, value in zip(self.memory.private, self.memory.kept, strict=True):
            if value is not None:
                root.set(key, value)
        return root

    def _write_checked(self, root: TensorDictBase) -> TensorDictBase:
        """Call the policy, and check that it writes the same entries as at construction."""
        before, planned = self._names_in(root), self.planned
        may_plan = planned is not None and (planned.plan is not None or (self._may_plan and planned.is_possible))
        if planned and may_plan and self._planned_names <= before <= self._known and self._has_plain_groups(root):
            outputs = self._write_by_plan(root, planned)
        else:
            outputs = self._write(root)
        new_keys = [as_key(path) for path in self._names_in(outputs) - before - self._known if not is_private(path)]
        if new_keys:
            raise changed_error(self.name, f"also wrote {', '.join(map(str, new_keys))}", self.forms)
        forms = _forms(outputs, self.forms)
        for key, form in forms.items() if forms != self.forms else ():
            first_form = self.forms[key]
            if form is None and first_form is not None:
                raise changed_error(self.name, f"did not write {key!r}", self.forms)
            new, old = (_forms(td, self.spec.observation_keys) for td in (outputs, self.example[0]))
            if form != first_form and (form[0] != first_form[0] or new == old):  # otherwise the observation differs
                self.require_form(key, form, first_form)
        return outputs

    def _names_in(self, td: TensorDictBase) -> set[tuple[str, ...]]:
        """Return the names at the root of a TensorDict and in the groups that it had at construction."""
        groups = [(path, td.get(path, {}).keys() if path else td.keys()) for path in self._groups]
        return {(*path, name) for path, names in groups for name in names}


def supplies_init(spec: HostSpec, options: BindingOptions) -> bool:
    """Tell whether to supply `is_init` where a policy keeps private entries; in TorchRL's envs a transform does."""
    return options.recurrent and spec.library != "torchrl" and IS_INIT not in spec.observation_keys


def keys_of(td: TensorDictBase) -> tuple[Key, ...]:
    """Return the keys of all leaves."""
    keys = td.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)
    return tuple(as_key(as_tuple(key)) for key in keys)


def _write_random(action_spec: Any, key: Key, root: TensorDictBase) -> TensorDictBase:
    """Write random actions from a spec."""
    action = action_spec.rand()
    return root.update(action) if isinstance(action, TensorDictBase | Mapping) else root.set(key, action)


def _on_device(
    call: Callable[[TensorDictBase], Any], device: torch.device | None, env_device: torch.device | None
) -> Write:
    """Return a function that calls a policy with the TensorDict on its device, and writes its answer into the root.

    The policy may write into the TensorDict or return another. For a device of `None` the TensorDict has no device.
    """

    def write(root: TensorDictBase) -> TensorDictBase:
        td = root if device == env_device else root.copy().clear_device_() if device is None else root.to(device)
        answer = call(td)
        answer = td if answer is None else answer
        if device is not None and device != env_device:
            answer = answer.cpu().clear_device_() if env_device is None else answer.to(env_device)
        return root if answer is root else root.update(answer)

    return write


def _forms(td: TensorDictBase, keys: Iterable[Key]) -> dict[Key, Any]:
    """Return dtype and shape of entries by key; `None` for a non-tensor, or if shapes differ between agents."""
    forms = dict.fromkeys(keys)
    for key in forms:
        with suppress(RuntimeError):
            value = td.get(key, None)
            forms[key] = (value.dtype, value.shape) if isinstance(value, torch.Tensor) else None
    return forms


def random_stand_in(spec: HostSpec, like: BoundPolicy) -> BoundPolicy:
    """Return a policy that draws random actions in place of `like`.

    Its other outputs are NaN, or 0 if the dtype has no NaN; recurrent state is 0.
    """
    if isinstance(spec, ArraySpec):
        return RandomActions(RandomPolicy(), spec, like)
    assert isinstance(like, TensorDictPolicy)
    other = [key for key in like.forms if key not in spec.action_keys and as_tuple(key)[-1] not in FLAGS]
    states = {*like.read, *map(under_next, like.read)}
    blanks = (
        like.example[0]
        .select(*other)
        .named_apply(lambda key, leaf: (zeros_like if as_tuple(key) in states else blank_like)(leaf), nested_keys=True)
    )
    stand_in = copy.copy(like)
    stand_in.draw = lambda root: spec.host.draw(root.update(blanks.clone()) if other else root)
    return stand_in


def is_called_by_torchrl(policy: Any, *, buffered: bool) -> bool:
    """Tell whether the constructor of TorchRL's collector calls this policy, and so draws from torch's generator.

    The call shows the keys of the outputs: it is left out if the policy's specs have all of them or, with a replay
    buffer, if the policy has `out_keys`.

    Args:
        policy: a policy for a TorchRL env; `None` for random actions.
        buffered: whether the collector has a replay buffer.
    """
    keys = getattr(policy, "out_keys", None) or ()
    if buffered:
        return not keys
    spec_keys = _specified_keys(policy)
    return spec_keys is None or any(as_key(as_tuple(key)) not in spec_keys for key in keys)


def _specified_keys(policy: Any) -> list[Key] | None:
    """Return the keys in the spec of a policy; `None` if it has no spec, or an incomplete one."""
    spec: Any = getattr(policy, "spec", None)
    if not hasattr(spec, "items"):
        return None
    leaves = dict(spec.items(include_nested=True, leaves_only=True))
    return None if None in leaves.values() else [as_key(as_tuple(key)) for key in leaves]


def batch_order(host: Any, policy: Any = None) -> tuple[Key, ...]:
    """Return keys of a batch in the order of TorchRL's collector, where further outputs of the policy come last.

    In TorchRL their order changes from process to process.

    Args:
        host: the host of TorchRL's envs.
        policy: the policy, whose spec may have further keys.
    """
    return (*keys_of(host.zero_step()), *(_specified_keys(policy) or ()), TRAJ_IDS)


def make_buffer(
    policy: BoundPolicy,
    observation: Leaves,
    n_steps: int,
    final_observation: FinalObservation = "required",
    infos: InfoReader | None = None,
) -> Any:
    """Return a buffer for T steps: a `Buffer`, or a `TensorDictBuffer`, which has the same methods."""
    if isinstance(policy, TensorDictPolicy):
        order = batch_order(policy.spec.host, policy.policy)
        return TensorDictBuffer(policy.spec, policy.example[0], n_steps, order)
    return Buffer(observation, policy.example, n_steps, final_observation, infos)


def build_policy(build: Callable[..., Any], env: Any) -> Any:
    """Call a policy factory; pass the env if it has a required positional parameter or one named `env`.

    Raises:
        TypeError: the factory returned `None`.
        Exception: raised by the factory, with a note.
    """
    with note_source(f"policy_factory {build!r}"):
        parameters = inspect.signature(build).parameters
        required = [parameter for parameter in parameters.values() if parameter.default is parameter.empty]
        if "env" in parameters and parameters["env"].kind is not inspect.Parameter.POSITIONAL_ONLY:
            policy = build(env=env)
        elif any(parameter.kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD for parameter in required):
            policy = build(env)
        else:
            policy = build()
    if policy is None:
        raise TypeError(f"policy_factory {build!r} returned None; it must return the policy")
    return policy


class RandomActions(BoundPolicy):
    """Random actions for a host of arrays.

    Args:
        policy: draws the actions.
        spec: properties of the envs.
        like: the policy to stand in for: its other outputs are NaN, or 0 if the dtype has no NaN; state is 0.
    """

    def __init__(self, policy: RandomPolicy, spec: ArraySpec, like: BoundPolicy | None = None) -> None:
        self._sample = policy.sampler(spec.action_space, spec.num_envs, spec.tensor_device)
        self._mask_at = spec.observation_keys.index(ACTION_MASK) if ACTION_MASK in spec.observation_keys else None
        if like is None:
            super().__init__(spec.action_keys, self._sample(None), Memory((spec.num_envs,)))
        else:
            super().__init__(like.keys, like.example, like.memory)
        n_outputs = len(self.keys) - len(self.memory.shown)
        states = {*map(under_next, self.memory.state)}
        outputs = [*zip(self.keys, self.example, strict=True)][len(spec.action) : n_outputs]
        self._blanks = [zeros_like(leaf) if as_tuple(key) in states else blank_like(leaf) for key, leaf in outputs]

    def __call__(self, observation: Leaves) -> Leaves:
        """Return random actions, blanks for the other outputs, and recurrent state."""
        mask = None if self._mask_at is None else as_tensor(observation[self._mask_at])
        outputs = [*self._sample(mask), *self._blanks]
        return [*outputs, *self.memory.update(outputs)]
