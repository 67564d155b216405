"""Policies for envs whose only leaf is a TensorDict: bound so that they write into it.

[root] ──▶ memory set ──▶ policy ──▶ [root with action and whatever else it wrote] ──▶ memory kept
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase, is_leaf_nontensor

from swath.keys import FLAGS, IS_INIT, STEP_COUNT, Key, as_key, as_tuple, is_private, under_next
from swath.rollout.hosts.base import TensorDictSpec, first_of
from swath.rollout.policies import calling
from swath.rollout.policies.answers import changed, require_same_form, require_sources
from swath.rollout.policies.random import RandomPolicy
from swath.rollout.policies.recurrent import Memory, copied
from swath.rollout.spaces import Leaves

Write = Callable[[TensorDictBase], TensorDictBase]
"""Writes a policy's outputs into the TensorDict it is given, and returns that."""

_BESIDE = (STEP_COUNT, IS_INIT)
"""Entries that transforms add beside the observation."""


class TensorDictPolicy(calling.BoundPolicy):
    """A policy bound to TensorDict envs; arguments as those of `bind`. It is called once, to learn its outputs.

    Whether an action is missing is the env's to say in its first step: a transform may make it of something else.

    Attributes:
        spec: the envs.
        draw: writes random actions in the policy's place; `None` if it acts itself.
    """

    def __init__(self, policy: Any, spec: TensorDictSpec, observation: Leaves, options: calling.Binding) -> None:
        root = observation[0].clone()
        self.spec, self.explores, self._name = spec, True, calling.the_policy(policy)
        self.draw: Write | None = None
        super().__init__((), [], Memory(spec.batch_shape))
        self._write = self._writing(policy, root, options)
        self._state = [under_next(key) for key in self.memory.state]
        self._with_memory(root)
        of_env = {*keys_of(root), *self.memory.keys}.difference(spec.acted)
        made = self._write(root)
        self.memory.learn(self._state, [made.get(key) for key in self._state])
        self.example = [self._with_memory(made)]
        keys = keys_of(made)
        self._forms = _forms(made, [key for key in keys if key not in of_env and not is_private(key)])
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
        self.example, self._forms, self._known = other.example, other._forms, other._known

    def randomly(self) -> TensorDictPolicy:
        """Random actions in its place; what only it writes is zero, so that keys stay."""
        own = [key for key in self._forms if key not in self.spec.acted and as_tuple(key)[-1] not in FLAGS]
        zeros = self.example[0].select(*own).apply(torch.zeros_like) if own else None
        draw, stand_in = self.spec.host.draw, copy.copy(self)
        stand_in.draw = draw if zeros is None else lambda root: draw(root.update(zeros.clone()))
        return stand_in

    def _writing(self, policy: Any, root: TensorDictBase, options: calling.Binding) -> Write:
        """How the policy writes into a TensorDict of the env, which may be elsewhere."""
        spec = self.spec
        if isinstance(policy, RandomPolicy):
            return spec.host.draw if policy.action_spec is None else partial(_drawn, policy.action_spec, spec.acted[0])
        take_spec = getattr(policy, "set_action_spec_from_env", None)  # of TorchRL's RandomPolicy
        if take_spec is not None and policy.action_spec is None:
            take_spec(first_of(spec.host.env))
        way = kind, read, self.explores = calling.convention(policy, spec.observed, trust=options.trust)
        if kind == "tensordict":
            there = {as_tuple(key) for key in root.keys(include_nested=True)}
            wanted = [key for key in read if as_tuple(key) not in there] if options.recurrent else []
            written = {as_tuple(key) for key in getattr(policy, "out_keys", None) or ()}
            self.memory = Memory(spec.batch_shape, [k for k in wanted if k == IS_INIT or under_next(k) in written])
            return _elsewhere(calling.exploring(policy, options.exploration), options.device, root.device)
        keys = keys_of(root)
        if kind == "single":
            keys = tuple(key for key in spec.observed if as_tuple(key)[-1] not in _BESIDE)
        require_sources([key for key in read if key not in keys], spec)
        take = partial(torch.as_tensor, device=options.device or "cpu")
        call, outputs = calling.caller(policy, way, keys, spec, options, lambda _, **__: take)

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
            raise changed(self._name, f"also wrote {', '.join(map(str, added))}", self._forms)
        for key, form in _forms(made, self._forms).items():
            then = self._forms[key]
            if form is None and then is not None:
                raise changed(self._name, f"did not write {key!r}", self._forms)
            if form != then and (form[0] != then[0] or not self._sees_other_shapes(made)):  # which outputs may follow
                require_same_form(self._name, key, form, then)
        return made

    def _sees_other_shapes(self, td: TensorDictBase) -> bool:
        return _forms(td, self.spec.observed) != _forms(self.example[0], self.spec.observed)

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
        given = root
        if there != home:
            given = root.copy().clear_device_() if there is None else root.to(there)
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
