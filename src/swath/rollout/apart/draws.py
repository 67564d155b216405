"""Ops that draw: on a thread that is apart each gets that thread's generator.

    torch.rand ─┐                   key included? (per thread)
    nn.Dropout  ├─▶ op ─▶ dispatcher ──┬─ no ──▶ autograd, modes, kernel
    TorchScript ┘                      └─ yes ─▶ `generator=` the thread's ─▶ autograd, modes, kernel

Torch's dispatcher has a key that nothing else uses and that each thread includes or not. Registered under it are the
ops that have a generator, in which nearly all draws end, wherever they begin; all others fall through it. So threads
without the key pay nothing, and those with it for draws only. A `TorchDispatchMode` would take every op through Python,
and it sets flags of the whole process. What such a mode of the user's draws in its own handler is not covered.
"""
# ruff: noqa: SLF001  the dispatcher's Python face has few public names

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch

from swath.rollout.apart.seeding import is_of_the_process
from swath.rollout.apart.streams import streams_of_this_thread

_C: Any = torch._C
_NAME = "TESTING_ONLY_GenericMode"
_KEY = _C._dispatch_key_parse(_NAME)
_ONLY = _C.DispatchKeySet(_KEY)
_BELOW = _C._dispatch_keyset_full_after(_KEY)
_FAKE = _C._TorchDispatchModeKey.FAKE
_CPU = torch.device("cpu")
_GENERATOR = "generator"

Kernel = Callable[..., Any]
"""What is registered for an op: takes the dispatch keys of the call, then what the op takes."""


@cache
def install() -> tuple[Any, ...]:
    """Tell the dispatcher, once. What is returned must be kept: with it the registrations would go."""
    rest = _C._dispatch_library("IMPL", "_", _NAME)
    rest.fallback_fallthrough()
    ours: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for op, kernel in _kernels():
        ours.impl(op, kernel, _NAME, with_keyset=True)
    return rest, ours


def redirected() -> AbstractContextManager[None]:
    """Draws on this thread go through what is registered."""
    guard: AbstractContextManager[None] = _C._IncludeDispatchKeyGuard(_KEY)
    return guard


def _kernels() -> Iterator[tuple[Any, Kernel]]:
    drawing = [_op(schema) for schema in _C._jit_get_all_schemas() if _draws(schema)]
    for op in drawing:
        yield op, _with_generator(op)
        plain = _without_generator(op)
        if plain is not None:
            yield plain, _as_if_with(op, plain)
    yield torch.ops.aten.native_dropout.default, _native_dropout
    yield torch.ops.aten.scaled_dot_product_attention.default, _attention


def _draws(schema: Any) -> bool:
    """Whether it is the schema of one of torch's ops and has a generator."""
    full_name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    takes_one = any(argument.name == _GENERATOR for argument in schema.arguments)
    return takes_one and schema.name.startswith("aten::") and _C._dispatch_has_kernel(full_name)


def _op(schema: Any) -> Any:
    return getattr(_family(schema), schema.overload_name or "default")


def _family(schema: Any) -> Any:
    return getattr(torch.ops.aten, schema.name.removeprefix("aten::"))


def _without_generator(op: Any) -> Any:
    """The op of the same family that takes all but the generator, if there is one."""
    wanted = [(a.name, str(a.type)) for a in op._schema.arguments if a.name != _GENERATOR]
    family = _family(op._schema)
    others = (getattr(family, name) for name in family.overloads())
    return next((each for each in others if [(a.name, str(a.type)) for a in each._schema.arguments] == wanted), None)


def _with_generator(op: Any) -> Kernel:
    at = [argument.name for argument in op._schema.arguments].index(_GENERATOR)

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        given = args[at] if len(args) > at else kwargs.get(_GENERATOR)
        if given is not None and not is_of_the_process(given):
            return op.redispatch(keys & _BELOW, *args, **kwargs)
        ours = _generator_for(args, kwargs)
        if len(args) > at:
            args = (*args[:at], ours, *args[at + 1 :])
        else:
            kwargs[_GENERATOR] = ours
        return _left_alone(op, args, kwargs)

    return kernel


def _as_if_with(op: Any, plain: Any) -> Kernel:
    """They end in ops with a generator too, but a mode of the user's in between would call those without the key."""

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        ours = _generator_for(args, kwargs)
        if ours is None:
            return plain.redispatch(keys & _BELOW, *args, **kwargs)
        return _left_alone(op, args, {**kwargs, _GENERATOR: ours})

    return kernel


def _left_alone(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an op that has its generator, and hands it on to those that it consists of."""
    with _C._ExcludeDispatchKeyGuard(_ONLY):
        return op(*args, **kwargs)


def _native_dropout(keys: Any, tensor: torch.Tensor, p: float, train: bool | None) -> Any:
    """On GPUs it draws in its kernel."""
    if train is False or p == 0 or _generator_for((tensor,), {}) is None:
        return torch.ops.aten.native_dropout.default.redispatch(keys & _BELOW, tensor, p, train)
    return dropped(tensor, p)


def _attention(keys: Any, *args: Any, **kwargs: Any) -> Any:
    """On GPUs it drops weights in its kernel."""
    query, p = args[0], args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
    if p == 0 or query.device.type == "cpu" or _generator_for(args, {}) is None:
        return torch.ops.aten.scaled_dot_product_attention.default.redispatch(keys & _BELOW, *args, **kwargs)
    return attended(args, kwargs)


def dropped(tensor: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Dropout while training, from ops with a generator: what is left, scaled, and the mask of it."""
    kept = torch.empty_like(tensor, dtype=torch.bool).bernoulli_(1 - p)
    return tensor * kept * (1 / (1 - p) if p < 1 else 0.0), kept


def attended(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """What `scaled_dot_product_attention` makes of these, from ops with a generator."""
    whole = torch.ops.aten._scaled_dot_product_attention_math
    attention: torch.Tensor = whole(*args, **kwargs)[0]
    return attention


def _generator_for(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Generator | None:
    """That of the device; none where nothing is drawn: while a compiler traces, the op as it is goes into the graph."""
    device, streams = _device(args, kwargs), streams_of_this_thread()
    if streams is None or device.type == "meta" or _C._get_dispatch_mode(_FAKE) is not None:
        return None
    return streams.on(device)


def _device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    asked: torch.device | None = kwargs.get("device")
    if asked is not None:
        return asked
    return next((value.device for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)), _CPU)
