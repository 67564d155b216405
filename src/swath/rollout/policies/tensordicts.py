"""Policies for envs whose only leaf is a TensorDict: bound so that they write into it.

[root] ──▶ memory set ──▶ policy ──▶ [root with action and whatever else it wrote] ──▶ memory kept
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch
from tensordict import TensorDictBase, is_leaf_nontensor

from swath.keys import DONE, IS_INIT, TERMINATED, TRUNCATED, Key, as_key, as_tuple, is_private, under_next
from swath.rollout.hosts.base import TensorDictSpec
from swath.rollout.policies.calling import BoundPolicy, changed, require_same_form
from swath.rollout.policies.recurrent import Memory, copied
from swath.rollout.spaces import Leaves

Write = Callable[[TensorDictBase], TensorDictBase]
"""Writes a policy's outputs into the TensorDict it is given, and returns that."""

_FLAGS = (DONE, TERMINATED, TRUNCATED)


class TensorDictPolicy(BoundPolicy):
    """A policy bound to TensorDict envs; it is called once, to learn its outputs.

    Whether an action is missing is the env's to say in its first step: a transform may make it of something else.

    Args:
        name: what messages call the policy.
        write: calls it.
        spec: the envs.
        memory: what it remembers and the env does not carry for it.
        observation: the first one, which stays as it is.
        explores: whether it takes the exploration type.

    Attributes:
        spec: as given.
        example: the first observation, with what was written into it.
        draw: writes random actions in the policy's place; `None` if it acts itself.
    """

    def __init__(
        self, name: str, write: Write, spec: TensorDictSpec, memory: Memory, observation: Leaves, *, explores: bool
    ) -> None:
        super().__init__((), (), memory)
        self.spec, self.explores = spec, explores
        self._name, self._write = name, write
        self._state = [under_next(key) for key in memory.state]
        self.draw: Write | None = None
        root = self._with_memory(observation[0].clone())
        of_env = {*keys_of(root), *memory.keys}.difference(spec.acted)
        made = write(root)
        memory.learn(self._state, [made.get(key) for key in self._state])
        self.example = self._with_memory(made)
        keys = keys_of(made)
        self._forms = _forms(made, [key for key in keys if key not in of_env and not is_private(key)])
        groups = [as_tuple(key)[:depth] for key in keys for depth in range(len(as_tuple(key)))]
        self._known: dict[tuple[str, ...], set[str]] = {path: set() for path in groups}
        self._learn(made)
        self._n_learning = 2

    def __call__(self, observation: Leaves) -> Leaves:
        """The TensorDict with the policy's outputs.

        Raises:
            TypeError, ValueError: they have another form than at construction.
        """
        act = self.draw or self._write_checked
        if not self.memory.keys:
            return [act(observation[0])]
        made = act(self._with_memory(observation[0]))
        self.memory.keep([made.get(key) for key in self._state])
        return [made]

    def take_over(self, other: TensorDictPolicy) -> None:
        """Go on from what the other remembers, with outputs of the form that the other's have."""
        super().take_over(other)
        self.example, self._forms, self._known = other.example, other._forms, other._known

    def randomly(self) -> TensorDictPolicy:
        """Random actions in its place; what only it writes is zero, so that keys stay."""
        own = [key for key in self._forms if key not in self.spec.acted and as_tuple(key)[-1] not in _FLAGS]
        zeros = self.example.select(*own).apply(torch.zeros_like) if own else None
        draw, stand_in = self.spec.draw, copy.copy(self)
        stand_in.draw = draw if zeros is None else lambda root: draw(root.update(zeros.clone()))
        return stand_in

    def _with_memory(self, root: TensorDictBase) -> TensorDictBase:
        for key, leaf in zip(self.memory.keys, self.memory.leaves, strict=True):
            if leaf is not None:
                root.set(key, torch.as_tensor(copied(leaf)))
            if key == IS_INIT:
                root.set(under_next(key), torch.zeros_like(root.get(key)))
        return root

    def _write_checked(self, root: TensorDictBase) -> TensorDictBase:
        """Call the policy, and check that it writes what it wrote at construction."""
        if self._n_learning:  # the env may write entries from its first step on
            self._n_learning -= 1
            self._learn(root)
        made = self._write(root)
        for path, known in self._known.items():
            group = made.get(path, None) if path else made
            if group is not None and not known.issuperset(group.keys()):
                self._require_private(path, set(group.keys()) - known)
        for key, form in self._forms.items():
            if form is None:
                continue
            value = made.get(key, None)
            if value is None:
                raise changed(self._name, f"did not write {key!r}", [*self._forms])
            if value.dtype is not form[0] or value.shape != form[1]:
                # Outputs may follow observations whose shape changes.
                follows = _forms(made, self.spec.observed) != _forms(self.example, self.spec.observed)
                require_same_form(self._name, key, value, (form[0], value.shape if follows else form[1]))
        return made

    def _learn(self, td: TensorDictBase) -> None:
        """Expect the names that are at the root of this TensorDict and in its groups."""
        for path, known in self._known.items():
            group = td.get(path, None) if path else td
            known.update(() if group is None else group.keys())

    def _require_private(self, path: tuple[str, ...], names: Iterable[str]) -> None:
        added = [as_key((*path, name)) for name in names if not is_private(name)]
        if added:
            raise changed(self._name, f"also wrote {', '.join(map(str, added))}", [*self._forms])


def keys_of(td: TensorDictBase) -> tuple[Key, ...]:
    """The keys of all leaves."""
    keys = td.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)
    return tuple(as_key(as_tuple(key)) for key in keys)


def drawing(spec: TensorDictSpec, given: Any) -> Write:
    """Random actions, drawn from a spec that is given, or from the env's."""

    def write(root: TensorDictBase) -> TensorDictBase:
        drawn = given.rand()
        return root.update(drawn) if isinstance(drawn, TensorDictBase | Mapping) else root.set(spec.acted[0], drawn)

    return spec.draw if given is None else write


def writing(call: Callable[[TensorDictBase], Any], there: torch.device | None, home: torch.device | None) -> Write:
    """A policy that takes the TensorDict on the device `there`; it may write into it or return another.

    One that has no device sees a TensorDict that has none either, wherever the env is.
    """

    def write(root: TensorDictBase) -> TensorDictBase:
        answer = call(root)
        return root if answer is root or answer is None else root.update(answer)

    def write_elsewhere(root: TensorDictBase) -> TensorDictBase:
        given = root.copy().clear_device_() if there is None else root.to(there)
        answer = call(given)
        answer = given if answer is None else answer
        if there is not None:
            answer = answer.cpu().clear_device_() if home is None else answer.to(home)
        return root.update(answer)

    return write if there == home else write_elsewhere


def _forms(td: TensorDictBase, keys: Iterable[Key]) -> dict[Key, tuple[torch.dtype, torch.Size] | None]:
    """Dtype and shape of these entries; `None` if one is no tensor, or has other shapes from agent to agent."""
    forms: dict[Key, tuple[torch.dtype, torch.Size] | None] = dict.fromkeys(keys)
    for key in forms:
        with suppress(RuntimeError):
            value = td.get(key)
            forms[key] = (value.dtype, value.shape) if isinstance(value, torch.Tensor) else None
    return forms
