"""Anything that users call a policy, bound to a host: leaves of observations in, leaves of outputs out.

    leaves [B, …] ─▶ give ─▶ tensors [*B, …] ─▶ call ─▶ answer ─▶ unpack ─▶ take ─▶ leaves [B, …], actions first

Every choice is made once, from the policy's answer to the first observation; the path of a step has no branches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from tensordict import TensorDictBase

from swath.keys import ACTION, IS_INIT, NEXT, Key, as_key, as_tuple, is_private, under_next
from swath.rollout.buffer import Column, column_of
from swath.rollout.calling import Call, Convention, caller, convention
from swath.rollout.exploration import ExplorationType
from swath.rollout.finite import require_finite
from swath.rollout.hosts.base import HostSpec
from swath.rollout.placement import giver, taker
from swath.rollout.random_policy import ACTION_MASK, RandomPolicy
from swath.rollout.spaces import Leaf, Leaves

Unpack = Callable[[Any], list[Any]]


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
        """Forget the last call."""

    def take_over(self, other: Any) -> None:
        """Go on from what `other`, the same kind of policy, remembers."""


@dataclass(frozen=True)
class Binding:
    """How to bind a policy.

    Attributes:
        device: where its inputs go; `None` leaves them on the CPU.
        exploration: how it picks actions.
        trust: call it with the TensorDict, unchecked.
        recurrent: supply `is_init` and recurrent state where it reads them.
        finite: raise `NonFinite` if its first answer is not finite.
    """

    device: torch.device | None = None
    exploration: ExplorationType = ExplorationType.RANDOM
    trust: bool = False
    recurrent: bool = True
    finite: bool = False


@dataclass(frozen=True)
class Path:
    """The strategies of one bound policy, in order of use."""

    give: Callable[[Leaves], list[torch.Tensor]]
    call: Call
    unpack: Unpack
    takes: tuple[Callable[[Any], Any], ...]
    explores: bool


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

    def take_over(self, other: Any) -> None:
        """Nothing is remembered."""


class Recurrent:
    """A policy that reads back what it wrote under `"next"`, zero where an episode begins; and `is_init`.

    Args:
        path: its strategies; the call takes the observation's tensors, the state's, then `is_init` if it is read.
        keys: the policy's outputs, then the state's root keys, then `is_init` if it is read.
        columns: one per key.
        state: where in the policy's outputs the next state stands.
        batch: `*B`, and whether `is_init` is read.
    """

    def __init__(
        self,
        path: Path,
        keys: tuple[Key, ...],
        columns: tuple[Column, ...],
        state: tuple[int, ...],
        batch: tuple[tuple[int, ...], bool],
    ) -> None:
        self._path, self._state_at = path, state
        self.explores = path.explores
        self._shape, self._reads_init = batch
        self.keys = keys
        self.columns = columns
        n_outputs = len(keys) - len(state) - int(self._reads_init)
        self._state = [_zeros(column, self._shape) for column in columns[n_outputs : n_outputs + len(state)]]
        self._is_init = torch.ones((*self._shape, 1), dtype=torch.bool)
        self._before = (self._state, self._is_init)

    def __call__(self, observation: Leaves) -> Leaves:
        """Outputs for this observation and the remembered state, and that state."""
        path, memory = self._path, self._memory()
        values = path.unpack(path.call([*path.give(observation), *memory]))
        leaves = [take(value) for take, value in zip(path.takes, [*values, *memory], strict=True)]
        self._before = (self._state, self._is_init)
        self._state = [torch.as_tensor(values[at]) for at in self._state_at]
        self._is_init = torch.zeros_like(self._is_init)
        return leaves

    def begin(self, envs: Sequence[int]) -> None:
        """Forget the state of these envs."""
        where = list(envs) if self._shape else ...
        self._state = [_with(state, where, 0) for state in self._state]
        self._is_init = _with(self._is_init, where, value=True)

    def rewind(self) -> None:
        """Take the state back to what it was before the last call."""
        self._state, self._is_init = self._before

    def take_over(self, other: Recurrent) -> None:
        """Go on from the other's state."""
        self._state, self._is_init, self._before = other._state, other._is_init, other._before

    def _memory(self) -> list[torch.Tensor]:
        return [*self._state, self._is_init] if self._reads_init else list(self._state)


class Randomly:
    """Random actions in the place of a bound policy; what only that policy writes is zero, so that keys stay."""

    def __init__(self, policy: RandomPolicy, spec: HostSpec, like: BoundPolicy | None = None) -> None:
        self.explores = False
        self._sample = policy.sampler(spec.action_space, spec.num_envs)
        self._mask_at = _mask_at(spec)
        self._others = () if like is None else like.columns[len(spec.action) :]
        self.keys = tuple(leaf.key for leaf in spec.action) if like is None else like.keys
        self.columns = tuple(column_of(leaf) for leaf in self._sample(None)) if like is None else like.columns

    def __call__(self, observation: Leaves) -> Leaves:
        """Random actions, and zeros."""
        mask = None if self._mask_at is None else torch.from_numpy(observation[self._mask_at])
        return [*self._sample(mask), *(_zero_row(column) for column in self._others)]

    def begin(self, envs: Sequence[int]) -> None:
        """Nothing is remembered."""

    def rewind(self) -> None:
        """Nothing is remembered."""

    def take_over(self, other: Any) -> None:
        """Nothing is remembered."""


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
    if policy is None or isinstance(policy, RandomPolicy):
        return Randomly(policy or RandomPolicy(), spec)
    env_keys = [leaf.key for leaf in spec.observation]
    how = convention(policy, env_keys, trust=options.trust)
    memory = _memory_keys(policy, env_keys, how) if options.recurrent else []
    inputs: list[Key] = [*env_keys, *memory]
    _require_inputs(how, inputs)
    _require_writers(policy, memory)
    batch = (spec.batch_shape, options.device)
    with torch.no_grad():
        give = giver(spec.batch_shape, options.device)
        call = caller(policy, how, inputs, batch)(options.exploration)
        first = [*give(observation), *(_first_memory(key, spec.batch_shape) for key in memory)]
        answer = _first_answer(call, first, memory)
    keys, unpack = _unpacker(policy, answer, spec, inputs)
    values = unpack(answer)
    takes = tuple(taker(spec.batch_shape, value) for value in values)
    leaves = [take(value) for take, value in zip(takes, values, strict=True)]
    for leaf, value in zip(spec.action, leaves, strict=False):
        _require_action(leaf, value, spec)
    for key, value in zip(keys, leaves, strict=True) if options.finite else ():
        require_finite(f"policy output {key!r}", value)
    path = Path(give, call, unpack, takes, how.explores)
    if not memory:
        return Feedforward(path, keys, tuple(column_of(leaf) for leaf in leaves))
    return _recurrent(path, keys, leaves, memory, spec)


def _recurrent(path: Path, keys: tuple[Key, ...], leaves: Leaves, memory: list[Key], spec: HostSpec) -> Recurrent:
    state = [key for key in memory if key != IS_INIT]
    missing = [key for key in state if (NEXT, *as_tuple(key)) not in keys]
    if missing:
        raise KeyError(f"the policy reads {missing}, which neither the env nor the policy under 'next' writes")
    at = tuple(keys.index((NEXT, *as_tuple(key))) for key in state)
    reads_init = IS_INIT in memory
    columns = [column_of(leaf) for leaf in leaves]
    columns += [columns[place] for place in at]
    if reads_init:
        columns.append(Column((spec.num_envs, 1), np.dtype(np.bool_)))
    remembered = (*state, IS_INIT) if reads_init else tuple(state)
    memory_takes = tuple(taker(spec.batch_shape, torch.empty(0, dtype=_torch_dtype(c))) for c in columns[len(leaves) :])
    full = Path(path.give, path.call, path.unpack, (*path.takes, *memory_takes), path.explores)
    return Recurrent(full, (*keys, *remembered), tuple(columns), at, (spec.batch_shape, reads_init))


def _memory_keys(policy: Any, env_keys: Sequence[Key], how: Convention) -> list[Key]:
    """What the policy reads that the env does not write: recurrent state, then `is_init`."""
    read = getattr(policy, "in_keys", None) if how.kind == "tensordict" else how.keys
    wanted = [as_key(as_tuple(key)) for key in read or ()]
    return sorted(dict.fromkeys(key for key in wanted if key not in env_keys), key=lambda key: key == IS_INIT)


def _require_inputs(how: Convention, inputs: Sequence[Key]) -> None:
    missing = [key for key in how.keys if key not in inputs]
    if missing:
        raise KeyError(f"the policy reads {missing}; the env writes {list(inputs)}")


def _require_writers(policy: Any, memory: Sequence[Key]) -> None:
    """What is read and not observed must be written under `"next"`, by a policy that says what it writes."""
    written = getattr(policy, "out_keys", None)
    state = [key for key in memory if key != IS_INIT]
    missing = [key for key in state if written is not None and under_next(key) not in map(as_tuple, written)]
    if missing:
        raise KeyError(f"the policy reads {missing}, which neither the env nor the policy under 'next' writes")


def _first_answer(call: Call, inputs: list[torch.Tensor | None], memory: Sequence[Key]) -> Any:
    try:
        return call(inputs)
    except Exception as error:
        if memory:
            error.add_note(f"the env does not write {list(memory)}; in its first call the policy gets None for state")
        raise


def _first_memory(key: Key, batch_shape: tuple[int, ...]) -> torch.Tensor | None:
    """Before its first answer the shape of a policy's state is unknown: it gets none."""
    return torch.ones((*batch_shape, 1), dtype=torch.bool) if key == IS_INIT else None


def _unpacker(policy: Any, answer: Any, spec: HostSpec, inputs: Sequence[Key]) -> tuple[tuple[Key, ...], Unpack]:
    """Names of the policy's outputs, action leaves first, and how to get at them in an answer like this one."""
    actions = [leaf.key for leaf in spec.action]
    if isinstance(answer, TensorDictBase | Mapping):
        return _unpack_names(answer, actions, inputs)
    if isinstance(answer, tuple):
        named = getattr(policy, "out_keys", None)
        found = [as_key(as_tuple(key)) for key in named] if named is not None else _numbered(actions, len(answer))
        if len(found) != len(answer):
            raise ValueError(f"the policy returned {len(answer)} values for its out_keys {found}")
        return _unpack_places(found, actions)
    if len(actions) > 1:
        raise KeyError(f"the policy returned one {type(answer).__name__}, the env wants the actions {actions}")
    return tuple(actions), lambda value: [value]


def _unpack_names(answer: Any, actions: list[Key], inputs: Sequence[Key]) -> tuple[tuple[Key, ...], Unpack]:
    found = [key for key in _leaf_keys(answer) if key not in inputs and not is_private(key)]
    keys = _actions_first(found, actions)
    if isinstance(answer, TensorDictBase):
        return keys, lambda td: [td.get(key) for key in keys]
    paths = [as_tuple(key) for key in keys]
    return keys, lambda mapping: [_follow(mapping, path) for path in paths]


def _unpack_places(found: list[Key], actions: list[Key]) -> tuple[tuple[Key, ...], Unpack]:
    keys = _actions_first([key for key in found if not is_private(key)], actions)
    places = [found.index(key) for key in keys]
    if places == list(range(len(found))):
        return keys, list
    return keys, lambda values: [values[place] for place in places]


def _actions_first(found: list[Key], actions: list[Key]) -> tuple[Key, ...]:
    missing = [key for key in actions if key not in found]
    if missing:
        raise KeyError(f"the policy must answer with the action {missing}; it answered with {found}")
    return (*actions, *(key for key in found if key not in actions))


def _leaf_keys(answer: Any) -> Iterator[Key]:
    for key, value in answer.items():
        if isinstance(value, TensorDictBase | Mapping):
            yield from (as_key((*as_tuple(key), *as_tuple(inner))) for inner in _leaf_keys(value))
        else:
            yield as_key(as_tuple(key))


def _numbered(actions: list[Key], count: int) -> list[Key]:
    return [*actions, *(f"output{i}" for i in range(1, count - len(actions) + 1))][:count]


def _follow(mapping: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        mapping = mapping[part]
    return mapping


def _require_action(leaf: Leaf, value: Any, spec: HostSpec) -> None:
    lead = spec.batch_shape
    wanted, got = (*lead, *leaf.shape), tuple(value.shape if lead else value.shape[1:])
    if wanted != got:
        raise ValueError(
            f"the policy's {leaf.key!r} has shape {got}; {leaf.space} with batch shape {lead} wants {wanted}"
        )
    kinds = {"f": "f", "i": "iu", "u": "iu", "b": "b"}[leaf.dtype.kind] + ("b" if _binary(leaf) else "")
    kind = np.dtype(value.dtype).kind if isinstance(value, np.ndarray) else "f"
    if kind not in kinds:
        raise TypeError(f"the policy's {leaf.key!r} has dtype {value.dtype}; {leaf.space} wants {leaf.dtype}")


def _binary(leaf: Leaf) -> bool:
    return leaf.key == ACTION and type(leaf.space).__name__ == "MultiBinary"


def _mask_at(spec: HostSpec) -> int | None:
    keys = [leaf.key for leaf in spec.observation]
    return keys.index(ACTION_MASK) if ACTION_MASK in keys else None


def _zero_row(column: Column) -> Any:
    return (
        column.allocate(1)[:, 0] * 0 if isinstance(column.dtype, torch.dtype) else np.zeros(column.shape, column.dtype)
    )


def _torch_dtype(column: Column) -> torch.dtype:
    if isinstance(column.dtype, torch.dtype):
        return column.dtype
    return torch.from_numpy(np.empty(0, column.dtype)).dtype


def _zeros(column: Column, batch_shape: tuple[int, ...]) -> torch.Tensor:
    return torch.zeros((*batch_shape, *column.shape[1:]), dtype=_torch_dtype(column))


def _with(tensor: torch.Tensor, where: Any, value: float) -> torch.Tensor:
    changed = tensor.clone()
    changed[where] = value
    return changed
