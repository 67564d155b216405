"""Policies for envs whose only leaf is a TensorDict: bound so that they write into it.

[root] ──▶ memory set ──▶ policy ──▶ [root with action and whatever else it wrote] ──▶ memory kept
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase, is_leaf_nontensor

from swath.keys import DONE, IS_INIT, STEP_COUNT, TERMINATED, TRUNCATED, Key, as_key, as_tuple, is_private, under_next
from swath.rollout.buffer import Column
from swath.rollout.hosts.specs import TensorDictSpec
from swath.rollout.policies.answers import unpacker
from swath.rollout.policies.binding import Binding
from swath.rollout.policies.calling import Convention, caller, convention
from swath.rollout.policies.exploration import exploring
from swath.rollout.policies.random_policy import RandomPolicy
from swath.rollout.policies.recurrent import Memory
from swath.rollout.spaces import Leaves

_SPEC_FROM_ENV = "set_action_spec_from_env"  # of TorchRL's RandomPolicy
_FLAGS = (DONE, TERMINATED, TRUNCATED)
Write = Callable[[TensorDictBase], TensorDictBase]
"""Writes a policy's outputs into the TensorDict it is given, and returns that."""

_BESIDE = (STEP_COUNT, IS_INIT)
"""Entries that transforms add beside the observation."""


class TensorDictActor:
    """A policy bound to TensorDict envs.

    Args:
        write: calls the policy.
        spec: the envs.
        memory: what it remembers from step to step that the env does not carry for it.
        explores: whether it knows the exploration type.
    """

    keys: tuple[Key, ...] = ()
    columns: tuple[Column, ...] = ()

    def __init__(self, write: Write, spec: TensorDictSpec, memory: Memory, *, explores: bool) -> None:
        self._write, self._spec, self._memory = write, spec, memory
        self._remembers = bool(memory.inputs)
        self.explores = explores
        self._state: dict[Key, torch.Tensor] = {}
        self._before: dict[Key, torch.Tensor] = {}
        self.example: TensorDictBase | None = None

    def try_on(self, observation: Leaves) -> None:
        """Call the policy once, to learn its outputs; `observation` stays as it is.

        Whether an action is missing is the env's to say in its first step: a transform may make it of something else.
        """
        root = observation[0].clone()
        self.begin(range(self._spec.num_envs))
        made = self._write(self._with_memory(root))
        for key in self._memory.keys:
            self._state[key] = torch.zeros_like(made.get(under_next(key)))
        self._before = self._state
        self.example = self._with_memory(made)

    def __call__(self, observation: Leaves) -> Leaves:
        """The TensorDict with the policy's outputs."""
        if not self._remembers:
            return [self._write(observation[0])]
        made = self._write(self._with_memory(observation[0]))
        self._before = self._state
        self._state = {key: made.get(under_next(key)).clone() for key in self._memory.keys}
        if self._memory.reads_init:
            self._state[IS_INIT] = torch.zeros_like(self._before[IS_INIT])
        return [made]

    def begin(self, envs: Sequence[int]) -> None:
        """Forget the state of these envs."""
        if self._memory.reads_init and IS_INIT not in self._state:
            self._state[IS_INIT] = torch.zeros((*self._spec.batch_shape, 1), dtype=torch.bool)
        where = list(envs)
        self._state = {key: self._filled(state, where, key == IS_INIT) for key, state in self._state.items()}

    def rewind(self) -> None:
        """Take the state back to before the last call."""
        self._state = self._before

    def skip(self) -> Leaves:
        """A step is made without this policy: it remembers nothing of it. What it remembered before."""
        before, self._before = self._state, self._state
        self._state = {key: torch.zeros_like(state) for key, state in before.items()}
        return [before]

    def take_over(self, other: TensorDictActor) -> None:
        """Go on from the other's state."""
        self._state, self._before = other._state, other._before

    def _with_memory(self, root: TensorDictBase) -> TensorDictBase:
        for key, state in self._state.items():
            root.set(key, state.clone())
        if self._memory.reads_init:
            root.set(under_next(IS_INIT), torch.zeros_like(self._state[IS_INIT]))
        return root

    def _filled(self, state: torch.Tensor, envs: list[int], value: bool) -> torch.Tensor:
        filled = state.clone()
        filled.view(self._spec.num_envs, -1)[envs] = value
        return filled


class TensorDictRandomly:
    """Random actions in the place of a bound policy; what only that policy writes is zero, so that keys stay."""

    keys: tuple[Key, ...] = ()
    columns: tuple[Column, ...] = ()
    explores = False

    def __init__(self, spec: TensorDictSpec, like: TensorDictActor) -> None:
        assert like.example is not None
        self._like, self._draw = like, spec.draw
        there = {*spec.acted, *spec.observed, *spec.carried, IS_INIT}
        only_its_own = [
            key
            for key in _keys_of(like.example)
            if key not in there and as_tuple(key)[-1] not in _FLAGS and not is_private(key)
        ]
        self._zeros = like.example.select(*only_its_own).apply(torch.zeros_like) if only_its_own else None

    def __call__(self, observation: Leaves) -> Leaves:
        """Random actions, zeros, and what the policy would have remembered."""
        root = observation[0]
        if self._zeros is not None:
            root.update(self._zeros.clone())
        for key, state in self._like.skip()[0].items():
            root.set(key, state)
        return [self._draw(root)]

    def begin(self, envs: Sequence[int]) -> None:
        """The policy forgets."""
        self._like.begin(envs)

    def rewind(self) -> None:
        """The policy goes back."""
        self._like.rewind()

    def skip(self) -> Leaves:
        """The policy's memory."""
        return self._like.skip()

    def take_over(self, other: Any) -> None:
        """Nothing is remembered here."""


def bind_tensordict(policy: Any, spec: TensorDictSpec, observation: Leaves, options: Binding) -> TensorDictActor:
    """Bind a policy to TensorDict envs, by calling it once on a copy of the first observation.

    Raises:
        TypeError: it cannot be called.
        KeyError: an entry it reads or the action is missing.
    """
    if policy is None or isinstance(policy, RandomPolicy):
        actor = TensorDictActor(_randomly(policy, spec), spec, Memory(), explores=True)
        actor.try_on(observation)
        return actor
    root = observation[0]
    if getattr(policy, "action_spec", policy) is None and callable(getattr(policy, _SPEC_FROM_ENV, None)):
        getattr(policy, _SPEC_FROM_ENV)(spec.env())
    named = tuple(key for key in spec.observed if as_tuple(key)[-1] not in _BESIDE)
    how = convention(policy, spec.observed, trust=options.trust)
    memory = _memory_of(policy, how, root) if options.recurrent else Memory()
    if how.kind == "tensordict":
        write = _writing(policy, options, root.device)
    else:
        write = _plain(policy, how, (spec, named), (observation, options))
    actor = TensorDictActor(write, spec, memory, explores=how.explores)
    actor.try_on(observation)
    return actor


def _memory_of(policy: Any, how: Convention, root: TensorDictBase) -> Memory:
    """What a policy reads that the env does not write, as far as it writes it for the next step."""
    read = (getattr(policy, "in_keys", None) or ()) if how.kind == "tensordict" else how.keys
    there = {as_key(as_tuple(key)) for key in root.keys(include_nested=True)}
    wanted = Memory.of(read, tuple(there))
    written = {as_tuple(key) for key in getattr(policy, "out_keys", None) or ()}
    return Memory(tuple(key for key in wanted.keys if under_next(key) in written), wanted.reads_init)


def _writing(policy: Any, options: Binding, home: torch.device | None) -> Write:
    """A policy that takes the TensorDict; it may write into it or return another.

    One that has no device sees a TensorDict that has none either, wherever the env is.
    """
    call, there = exploring(policy, options.exploration), options.device

    def write(root: TensorDictBase) -> TensorDictBase:
        answer = call(root)
        return root if answer is root or answer is None else root.update(answer)

    def write_anywhere(root: TensorDictBase) -> TensorDictBase:
        given = root.copy().clear_device_()
        answer = call(given)
        return root.update(given if answer is None else answer)

    if there == home:
        return write
    if there is None:
        return write_anywhere

    def write_there(root: TensorDictBase) -> TensorDictBase:
        given = root.to(there)
        answer = call(given)
        answer = given if answer is None else answer
        return root.update(answer.to(home) if home is not None else answer.cpu().clear_device_())

    return write_there


def _plain(
    policy: Any, how: Convention, entries: tuple[TensorDictSpec, Sequence[Key]], with_: tuple[Leaves, Binding]
) -> Write:
    """A policy that takes and gives tensors."""
    (spec, named), (observation, options) = entries, with_
    keys = named if how.kind == "single" else _keys_of(observation[0])
    missing = [key for key in how.keys if key not in keys]
    if missing:
        raise KeyError(f"the policy reads {missing}; the env writes {list(keys)}")
    batch = (spec.batch_shape, options.device)
    call = caller(policy, how, keys, batch, options.exploration)
    there, home = options.device, observation[0].device

    def answer(root: TensorDictBase) -> Any:
        inputs = [root.get(key) for key in keys]
        return call(inputs if there is None else [value.to(there) for value in inputs])

    first = answer(observation[0].clone())
    outs, unpack = unpacker(policy, first, spec, keys)

    def write(root: TensorDictBase) -> TensorDictBase:
        for key, value in zip(outs, unpack(answer(root)), strict=True):
            root.set(key, torch.as_tensor(value, device=home or "cpu"))
        return root

    return write


def _keys_of(td: TensorDictBase) -> tuple[Key, ...]:
    keys = td.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)
    return tuple(as_key(as_tuple(key)) for key in keys)


def _randomly(policy: RandomPolicy | None, spec: TensorDictSpec) -> Write:
    given: Any = None if policy is None else policy.action_spec
    if given is None:
        return spec.draw

    def write(root: TensorDictBase) -> TensorDictBase:
        drawn = given.rand()
        return root.update(drawn) if isinstance(drawn, TensorDictBase | Mapping) else root.set(spec.acted[0], drawn)

    return write
