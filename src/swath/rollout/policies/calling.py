"""The call of a policy: leaves of observations in, leaves of outputs out, in the form that they had at construction.

leaves [B, …] ─▶ give ─▶ tensors [*B, …] ─▶ call ─▶ answer ─▶ unpack ─▶ take ─▶ leaves [B, …], actions first
"""

from __future__ import annotations

import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import CudaGraphModule, TensorDictModuleBase, set_interaction_type
from tensordict.nn import InteractionType as ExplorationType

from swath.errors import NonFinite, WorkerLate
from swath.keys import Key, as_key, as_tuple, nested
from swath.rollout.buffer import Column
from swath.rollout.policies.recurrent import Memory, copied
from swath.rollout.spaces import Leaves

__all__ = ["ExplorationType"]  # one enum, shared with tensordict (and so with TorchRL); all else is defined here

InputBatch: TypeAlias = tuple[tuple[int, ...], torch.device | None]
"""The batch shape `*B` of a policy's inputs, and their device; `None` for the CPU."""

Give: TypeAlias = Callable[[Leaves], list[torch.Tensor]]
Call: TypeAlias = Callable[[Sequence[torch.Tensor | None]], Any]
"""Takes one tensor per input key; `None` for an entry that is not known yet."""

Unpack: TypeAlias = Callable[[Any], list[Any]]
"""An answer to its values, in the order of the policy's keys."""

UNLIKE = (TypeError, ValueError, KeyError, IndexError, AttributeError)
"""What comes of an answer that is not like the one at construction."""

NOT_WRAPPED = "Failed to wrap the policy. If the policy needs to be trusted, set trust_policy=True."
"""How the error of a policy ends that fits no way of calling; TorchRL's users look for these words."""

LONGEST_CALL_S = 300.0
_one_call_at_a_time = threading.RLock()

_EXPLORATION = "exploration_type"
_TENSORDICT_NAMES = ("tensordict", "td")
_TENSORDICT_TYPES = ("TensorDict", "TensorDictBase")
_UNNAMED = inspect.Parameter.POSITIONAL_ONLY
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY, _UNNAMED)


class BoundPolicy(ABC):
    """A policy bound to a host, with what its outputs look like. Used by one thread at a time.

    Attributes:
        keys: of its outputs, action leaves first, what it remembered last.
        columns: of these outputs.
        memory: what it remembers from step to step.
        explores: whether it takes the exploration type.
    """

    explores = False

    def __init__(self, keys: Sequence[Key], columns: Sequence[Column], memory: Memory) -> None:
        self.keys, self.columns, self.memory = tuple(keys), tuple(columns), memory

    @abstractmethod
    def __call__(self, observation: Leaves) -> Leaves:
        """Outputs `[B, …]`, action leaves first."""

    def begin(self, envs: Sequence[int]) -> None:
        """Episodes begin in these envs."""
        self.memory.begin(envs)

    def rewind(self) -> None:
        """Take the last call back, for the envs that begin next."""
        self.memory.rewind()

    def take_over(self, other: Any) -> None:
        """Go on from what `other`, the same kind of policy, remembers."""
        self.memory.take_over(other.memory)


def answered(answer: Any) -> str:
    """What a policy answered with, in words."""
    entries = f" of {list(answer.keys())}" if isinstance(answer, Mapping) else ""
    return f"answered with {type(answer).__name__}{entries}"


def changed(name: str, what: str, keys: Sequence[Key]) -> TypeError:
    """The error of a policy whose outputs have changed since its construction."""
    return TypeError(f"{name} {what}, unlike at construction; it must give {list(keys)} in the same form at every step")


def require_same_form(name: str, key: Key, leaf: Any, then: tuple[Any, Sequence[int]]) -> None:
    """Check an output against its dtype and shape at construction.

    Raises:
        ValueError: it has another shape, or a dtype that would lose its fraction, sign or imaginary part.
    """
    dtype, shape = then
    if tuple(leaf.shape) != tuple(shape) or not _holds(dtype, leaf.dtype):
        raise ValueError(
            f"{name} answered {key!r} with shape {tuple(leaf.shape)} and dtype {leaf.dtype}; at construction it "
            f"had {tuple(shape)} and {dtype}, which it must keep"
        )


def _holds(wide: Any, narrow: Any) -> bool:
    if isinstance(wide, torch.dtype) and isinstance(narrow, torch.dtype):
        return torch.can_cast(narrow, wide)
    return not isinstance(wide, torch.dtype) and np.can_cast(narrow, wide, "same_kind")


# ---- the call itself


@dataclass(frozen=True)
class Convention:
    """How one policy is called.

    Attributes:
        kind: `"tensordict"`, `"keys"` (entries in order), `"names"` (entries by keyword) or `"single"`.
        keys: the entries that it reads, as far as it says; `()` for all.
        explores: whether it takes the exploration type.
    """

    kind: Literal["tensordict", "keys", "names", "single"]
    keys: tuple[Key, ...] = ()
    explores: bool = False


def convention(policy: Any, observation: Sequence[Key], *, trust: bool | None) -> Convention:
    """Read from a policy how to call it; with a TensorDict if it is trusted, as CUDA graphs are if `trust` is `None`.

    Raises:
        TypeError: it fits no way of calling; the message has its parameters, the env's keys and the way out.
    """
    in_keys = getattr(policy, "in_keys", None)
    read = tuple(as_key(as_tuple(key)) for key in in_keys or ())
    if isinstance(policy, TensorDictModuleBase) or (isinstance(policy, CudaGraphModule) if trust is None else trust):
        return Convention("tensordict", read, explores=True)
    parameters = _parameters(policy)
    children = list(policy.children()) if isinstance(policy, torch.nn.Module) else []
    if not parameters and len(children) == 1:  # as in what `torch.compile` returns
        return convention(children[0], observation, trust=trust)
    explores = _EXPLORATION in parameters
    inputs = {name: parameter for name, parameter in parameters.items() if name != _EXPLORATION}
    if len(inputs) == 1 and _takes_tensordict(*inputs.values()):
        return Convention("tensordict", read, explores=True)
    if in_keys is not None:
        return Convention("keys", read, explores)
    required = [name for name, parameter in inputs.items() if parameter.default is parameter.empty]
    named = tuple(name for name in inputs if name in observation and inputs[name].kind != _UNNAMED)
    if named and set(required) <= set(named):
        return Convention("names", named, explores)
    if len(required) == 1 or (not required and len(inputs) == 1):
        return Convention("single", (), explores)
    raise TypeError(
        f"cannot tell how to call {the_policy(policy)}: its parameters are {list(inputs)}, the env's entries "
        f"{list(observation)}. Name its parameters after these entries, give it `in_keys`, or let it take one "
        f"`tensordict`. {NOT_WRAPPED}"
    )


def _parameters(policy: Any) -> dict[str, inspect.Parameter]:
    if not callable(policy):
        raise TypeError(
            f"policy is of type {type(policy).__name__}; it must be None, a callable, an nn.Module "
            "or a TensorDict module"
        )
    try:
        signature = inspect.signature(policy.forward if isinstance(policy, torch.nn.Module) else policy)
    except ValueError as error:
        raise TypeError(f"{the_policy(policy)} has no readable signature; wrap it in a function") from error
    given = policy.keywords if isinstance(policy, partial) else ()  # what the user has given stays
    return {name: p for name, p in signature.parameters.items() if name not in given and p.kind in _NAMED}


def _takes_tensordict(parameter: inspect.Parameter) -> bool:
    annotation = getattr(parameter.annotation, "__name__", str(parameter.annotation))
    return parameter.name in _TENSORDICT_NAMES or annotation.endswith(_TENSORDICT_TYPES)


def the_policy(policy: Any) -> str:
    """What messages call it: `the policy act`, and `the policy` alone where its name says no more."""
    name = getattr(policy, "__name__", type(policy).__name__)
    return "the policy" if name == "policy" else f"the policy {name}"


def caller(policy: Any, how: Convention, keys: Sequence[Key], batch: InputBatch, exploration: ExplorationType) -> Call:
    """What calls the policy, given the keys of the inputs that it will get."""
    if how.kind == "tensordict":
        return _tensordict_caller(exploring(policy, exploration), keys, batch)
    function = partial(policy, **{_EXPLORATION: exploration}) if how.explores else policy
    at = [list(keys).index(key) for key in how.keys]
    if how.kind == "names":
        named = [(str(key), place) for key, place in zip(how.keys, at, strict=True)]
        return lambda inputs: function(**{name: inputs[place] for name, place in named})
    if how.kind == "keys" and at != [0]:
        return lambda inputs: function(*[inputs[place] for place in at])
    if how.kind == "single" and len(keys) > 1:
        return lambda inputs: function(nested(zip(keys, inputs, strict=True)))
    return lambda inputs: function(inputs[0])


def _tensordict_caller(function: Callable[[Any], Any], keys: Sequence[Key], batch: InputBatch) -> Call:
    size, device = torch.Size(batch[0]), batch[1]
    collect: Callable[[Any], Any] = dict if all(isinstance(key, str) for key in keys) else nested

    def call(inputs: Sequence[torch.Tensor | None]) -> Any:
        known = [(key, value) for key, value in zip(keys, inputs, strict=True) if value is not None]
        given = TensorDict(collect(known), batch_size=size, device=device)
        answer = function(given)
        return given if answer is None else answer

    return call


def as_exploration_type(value: ExplorationType | str) -> ExplorationType:
    """The enum member, also from its name in any case.

    Raises:
        ValueError: no such type; the message lists the names there are.
    """
    types = ExplorationType.__members__
    name = value.name if isinstance(value, ExplorationType) else str(value).upper()
    if name not in types:
        raise ValueError(f"exploration_type={value!r} is none of {', '.join(types)}")
    return types[name]


def exploring(policy: Callable[[Any], Any], exploration: ExplorationType) -> Callable[[Any], Any]:
    """The policy, called with a TensorDict under this exploration type.

    The type belongs to the process. So calls from several threads wait for each other, and each sees its own type.
    What the user's own code sets outside of these calls is not guarded.

    Raises:
        WorkerLate: another thread has been in such a call for `LONGEST_CALL_S` seconds.
    """
    mode = set_interaction_type(exploration)

    def call(td: Any) -> Any:
        if not _one_call_at_a_time.acquire(timeout=LONGEST_CALL_S):
            raise WorkerLate(
                f"another thread of this process has been in a call of its policy for {LONGEST_CALL_S:.0f} s, and the "
                "exploration type belongs to the process; use backend='process'",
                deadline=LONGEST_CALL_S,
            )
        try:
            with mode:
                return policy(td)
        finally:
            _one_call_at_a_time.release()

    return call


# ---- to the policy's device and back


def device_of(policy: Any) -> torch.device | None:
    """Where a module's weights are, if that is not the CPU: its inputs must go there."""
    first = next(policy.parameters(), None) if isinstance(policy, torch.nn.Module) else None
    return None if first is None or first.device.type == "cpu" else first.device


def giver(batch: InputBatch, convert: Callable[[Any], Any] = torch.from_numpy, *, copies: bool = False) -> Give:
    """How leaves `[B, …]` become tensors `[*B, …]` on the policy's device: copies, if it writes into what it gets."""
    batch_shape, device = batch

    def give(leaves: Leaves) -> list[torch.Tensor]:
        return [*map(convert, leaves)]

    def give_one(leaves: Leaves) -> list[torch.Tensor]:
        return [convert(leaf[0]) if leaf.ndim > 1 else convert(leaf).squeeze(0) for leaf in leaves]

    on_cpu = give if batch_shape else give_one
    if device is not None and device.type != "cpu":
        return lambda leaves: [tensor.to(device) for tensor in on_cpu(leaves)]
    return (lambda leaves: on_cpu([*map(copied, leaves)])) if copies else on_cpu


def taker(batch_shape: tuple[int, ...], example: Any, *, action: bool) -> Callable[[Any], Any]:
    """How an output `[*B, …]` like `example` becomes an array `[B, …]`.

    Where numpy lacks the dtype it is a tensor; an action is float32 then, as envs take no tensors.
    """
    in_numpy = isinstance(example, torch.Tensor) and _in_numpy(example.dtype)

    def detached(value: torch.Tensor) -> Any:
        on_cpu = value.detach().cpu()
        if in_numpy:
            return on_cpu.numpy()
        return on_cpu.float().numpy() if action else on_cpu

    convert: Callable[[Any], Any] = detached
    if not isinstance(example, torch.Tensor):
        convert = np.asarray
    elif in_numpy and example.device.type == "cpu" and not example.requires_grad:  # it does if it is a parameter
        convert = torch.Tensor.numpy
    return convert if batch_shape else (lambda value: convert(value)[None])


def _in_numpy(dtype: torch.dtype) -> bool:
    try:
        torch.empty(0, dtype=dtype).numpy()
    except TypeError:
        return False
    return True


# ---- NaN and infinities


class Finite:
    """Acts as a policy does, and checks that what it sees and what it answers is finite.

    Args:
        policy: the policy.
        observed: keys of the observation leaves.
    """

    def __init__(self, policy: BoundPolicy, observed: Sequence[Key]) -> None:
        self._policy, self._observed = policy, observed
        self.begin, self.rewind = policy.begin, policy.rewind

    def __call__(self, observation: Leaves) -> Leaves:
        """The policy's outputs.

        Raises:
            NonFinite: one of them, or of the observations, is NaN or infinite.
        """
        require_finite_leaves("observation", self._observed, observation)
        outputs = self._policy(observation)
        require_finite_leaves("policy output", self._policy.keys, outputs)
        return outputs


def require_finite_leaves(what: str, keys: Sequence[Key], leaves: Leaves) -> None:
    """Raise `NonFinite` for the first leaf with a NaN or an infinity; of a TensorDict, the only leaf, for its entry."""
    named: Iterable[tuple[Key, Any]] = zip(keys, leaves, strict=False)
    if isinstance(leaves[0], TensorDictBase):
        entries = leaves[0].items(include_nested=True, leaves_only=True)
        named = ((key, value.reshape(leaves[0].numel(), -1)) for key, value in entries)
    for key, leaf in named:
        require_finite(f"{what} {key!r}", leaf)


def require_finite(what: str, leaf: Any) -> None:
    """Raise `NonFinite` naming the first env with a NaN or an infinity in `leaf` `[B, …]`."""
    values = torch.as_tensor(leaf)
    if not values.is_floating_point() or bool(values.isfinite().all()):
        return
    env = int((~values.isfinite()).reshape(len(values), -1).any(dim=1).nonzero()[0])
    raise NonFinite(
        f"{what} is not finite in env {env}: {values[env].tolist()}; look for a diverged network or env state"
    )
