"""Calling the modules of a tensordict sequence one after another, which is all that a plain sequence does.

    sequence(td) ──▶ how is it called? how is it run? ──▶ how is first called? ──▶ first.forward(td) ──▶ …
    straight(td) ────────────────────────────────────────────────────────────────▶ first.forward(td) ──▶ …

The answers are the same in every step, and for a small network asking takes longer than the arithmetic. What users can
change later is looked at in every call: the modules of the sequence, hooks, compiled forwards, `set_skip_existing`.
"""
# ruff: noqa: SLF001  there are no public names for what calls look at

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from inspect import getattr_static
from typing import Any

from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictSequential, skip_existing
from torch import nn

_RUNS = ("__call__", "_call_impl", "forward", "_run_module", "_module_iter")
_SAMPLES = (*_RUNS, "get_dist_params", "det_part", "_last_module")
_FOR_OTHER_CALLS = ("dispatch.__call__.<locals>.wrapper", "_set_skip_existing_None.__call__.<locals>.wrapper")
"""Decorators of tensordict's for calls without a TensorDict, and for those that skip what is there."""


def straight(policy: Any) -> Callable[[Any], Any]:
    """What does the same as this policy, quicker for a plain sequence; called while an exploration type is set."""
    modules = _modules_of(policy)
    if modules is None:
        given: Callable[[Any], Any] = policy
        return given
    forward_of = cache(_forward_of)

    def call(td: Any) -> Any:
        if skip_existing() or not _is_bare(policy):
            return policy(td)
        for module in modules():
            td = forward_of(module.__class__)(module, td) if _is_bare(module) else module(td)
        return td

    return call


def _modules_of(policy: Any) -> Callable[[], Iterable[Any]] | None:
    """What a plain sequence runs, in order; `None` for anything else."""
    if _is_plain(policy, TensorDictSequential, _RUNS):
        return policy.module._modules.values  # type: ignore[no-any-return]
    if not (_is_plain(policy, ProbabilisticTensorDictSequential, _SAMPLES) and _samples_last(policy)):
        return None
    body, whole = policy.det_part.module._modules, policy.module._modules
    return lambda: (*body.values(), next(reversed(whole.values())))


def _samples_last(policy: Any) -> bool:
    """Whether only the last of its modules samples, and does."""
    samples = policy._requires_sample and not policy.return_composite
    return samples and _is_plain(policy.det_part, TensorDictSequential, _RUNS)


def _is_plain(sequence: Any, kind: Any, methods: Sequence[str]) -> bool:
    """Whether it runs as `kind` does, each module writing into the TensorDict that it is given."""
    return (
        isinstance(sequence, kind)
        and all(getattr_static(type(sequence), name) is getattr_static(kind, name) for name in methods)
        and isinstance(sequence.module, nn.ModuleList)
        and sequence.inplace is None
        and not sequence.partial_tolerant
        and not sequence._select_before_return
    )


def _is_bare(module: nn.Module) -> bool:
    """Whether calling it is calling its class's `forward`."""
    own = vars(module)
    compiled = own.get("_compiled_call_impl")
    return not (own["_forward_hooks"] or own["_forward_pre_hooks"] or compiled or "forward" in own)


def _forward_of(kind: Any) -> Callable[[Any, Any], Any]:
    """What is left of calling a module with a TensorDict."""
    plain = kind.__call__ is nn.Module.__call__ and kind._call_impl is nn.Module._call_impl
    forward: Any = kind.forward if plain else kind.__call__
    while getattr(getattr(forward, "__code__", None), "co_qualname", None) in _FOR_OTHER_CALLS:
        forward = forward.__wrapped__
    return forward  # type: ignore[no-any-return]
