"""How a policy wants to be called, read from what it is and from its signature.

input keys, tensors [*B, …] ──▶ Call ──▶ whatever the policy returns
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase

from swath.keys import Key, as_key, as_tuple, nested
from swath.rollout.policies.exploration import ExplorationType, exploring

Inputs: TypeAlias = Sequence[torch.Tensor | None]
Call: TypeAlias = Callable[[Inputs], Any]
"""Takes one tensor per input key; `None` for an entry that is not known yet."""

InputBatch: TypeAlias = tuple[tuple[int, ...], torch.device | None]
"""The batch shape of a policy's inputs, and their device."""

NOT_WRAPPED = "Failed to wrap the policy. If the policy needs to be trusted, set trust_policy=True."
"""How the error of a policy ends that fits no way of calling; TorchRL's users look for these words."""

_TENSORDICT_NAMES = ("tensordict", "td")
_EXPLORATION = "exploration_type"
_UNNAMED = inspect.Parameter.POSITIONAL_ONLY
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY, _UNNAMED)


@dataclass(frozen=True)
class Convention:
    """How one policy is called.

    Attributes:
        kind: `"tensordict"`, `"keys"` (entries in order), `"names"` (entries by keyword) or `"single"`.
        keys: the input keys it reads, for `"keys"` and `"names"`; all of them otherwise.
        explores: whether it takes the exploration type itself.
    """

    kind: Literal["tensordict", "keys", "names", "single"]
    keys: tuple[Key, ...] = ()
    explores: bool = False


def convention(policy: Any, observation: Sequence[Key], *, trust: bool) -> Convention:
    """Read from a policy how to call it.

    Raises:
        TypeError: it fits no way of calling; the message has its parameters, the env's keys and the way out.
    """
    if isinstance(policy, TensorDictModuleBase) or trust:
        return Convention("tensordict", explores=True)
    parameters = _parameters(policy)
    if not parameters and (inner := _only_child(policy)) is not None:  # as what `torch.compile` returns has it
        return convention(inner, observation, trust=trust)
    explores = _EXPLORATION in parameters
    inputs = {name: parameter for name, parameter in parameters.items() if name != _EXPLORATION}
    if _takes_tensordict(inputs):
        return Convention("tensordict", explores=True)
    in_keys = getattr(policy, "in_keys", None)
    if in_keys is not None:
        return Convention("keys", tuple(as_key(as_tuple(key)) for key in in_keys), explores)
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


def the_policy(policy: Any) -> str:
    """What messages call it: `the policy act`, and `the policy` alone where its name says no more."""
    name = getattr(policy, "__name__", type(policy).__name__)
    return "the policy" if name == "policy" else f"the policy {name}"


def caller(policy: Any, how: Convention, keys: Sequence[Key], batch: InputBatch, exploration: ExplorationType) -> Call:
    """What calls the policy, given the keys of the inputs it will get."""
    if how.kind == "tensordict":
        return _tensordict_call(policy, keys, batch, exploration)
    extra = {_EXPLORATION: exploration} if how.explores else {}
    if how.kind == "single":
        return _single_call(policy, keys, extra)
    at = [list(keys).index(key) for key in how.keys]
    if how.kind == "keys":
        return _ordered_call(policy, at, extra)
    named = [(str(key), place) for key, place in zip(how.keys, at, strict=True)]
    return lambda inputs: policy(**{name: inputs[place] for name, place in named}, **extra)


def _tensordict_call(policy: Any, keys: Sequence[Key], batch: InputBatch, exploration: ExplorationType) -> Call:
    size, device = torch.Size(batch[0]), batch[1]
    flat = all(isinstance(key, str) for key in keys)
    explore = exploring(policy, exploration)

    def call(inputs: Inputs) -> Any:
        pairs = [(key, value) for key, value in zip(keys, inputs, strict=True) if value is not None]
        given = TensorDict(dict(pairs) if flat else {}, batch_size=size, device=device)
        if not flat:
            given.update(dict(pairs))
        answer = explore(given)
        return given if answer is None else answer

    return call


def _single_call(function: Any, keys: Sequence[Key], extra: Mapping[str, Any]) -> Call:
    if len(keys) > 1:
        return lambda inputs: function(nested(zip(keys, inputs, strict=True)), **extra)
    if extra:
        return lambda inputs: function(inputs[0], **extra)
    return lambda inputs: function(inputs[0])


def _ordered_call(function: Any, at: Sequence[int], extra: Mapping[str, Any]) -> Call:
    if list(at) == [0]:
        return _single_call(function, ("",), extra)
    return lambda inputs: function(*[inputs[place] for place in at], **extra)


def _only_child(policy: Any) -> torch.nn.Module | None:
    children = list(policy.children()) if isinstance(policy, torch.nn.Module) else []
    return children[0] if len(children) == 1 else None


def _parameters(policy: Any) -> dict[str, inspect.Parameter]:
    if not callable(policy):
        raise TypeError(
            f"policy is of type {type(policy).__name__}; it must be None, a callable, an nn.Module "
            "or a TensorDict module"
        )
    function = policy.forward if isinstance(policy, torch.nn.Module) else policy
    try:
        signature = inspect.signature(function)
    except ValueError as error:
        raise TypeError(f"{the_policy(policy)} has no readable signature; wrap it in a function") from error
    given = policy.keywords if isinstance(policy, partial) else ()  # what the user has given stays
    inputs = {name: parameter for name, parameter in signature.parameters.items() if name not in given}
    return {name: parameter for name, parameter in inputs.items() if parameter.kind in _NAMED}


def _takes_tensordict(parameters: Mapping[str, inspect.Parameter]) -> bool:
    if len(parameters) != 1:
        return False
    ((name, parameter),) = parameters.items()
    return name in _TENSORDICT_NAMES or _is_tensordict_type(parameter.annotation)


def _is_tensordict_type(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2] in ("TensorDict", "TensorDictBase")
    return isinstance(annotation, type) and issubclass(annotation, TensorDictBase)
