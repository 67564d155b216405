"""What a policy answers, its outputs by key as arrays `[B, …]`; and its memory, which it reads in the next step.

state ──▶ policy ──▶ ("next", state) ──▶ copied ──▶ state of the next step, zero where an episode begins
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import prod
from operator import methodcaller
from typing import Any, TypeAlias

import numpy as np
import torch
from gymnasium import spaces

from swath.keys import IS_INIT, Key, as_key, as_tuple, is_private, under_next
from swath.rollout.hosts.base import ArraySpec, HostSpec
from swath.rollout.spaces import Leaves

# An answer to its values, in the order of the policy's keys; to none or fewer if it is not like the first.
Unpack: TypeAlias = Callable[[Any], list[Any]]

# A value to a leaf.
Take: TypeAlias = Callable[[Any], Any]

_SEVERAL = (tuple, Mapping, type(None))

# Kinds of numpy dtypes that an action of each kind may come in.
_KINDS = {"f": "f", "i": "iu", "u": "iu", "b": "b"}


def unpacker(policy: Any, actions: Sequence[Key], inputs: Iterable[Key], answer: Any) -> tuple[Sequence[Key], Unpack]:
    """Names of the policy's outputs, action leaves first, and how to get at them in an answer like this one.

    Raises:
        KeyError: there is no action among them.
        TypeError: there is no answer.
        ValueError: a tuple that does not fit the policy's `out_keys`.
    """
    if answer is None:
        raise TypeError(f"the policy returned None; it must return the actions {[*actions]}: is a `return` missing?")
    if not isinstance(answer, _SEVERAL):
        if len(actions) > 1:
            raise KeyError(f"the policy returned one {type(answer).__name__}, the env wants the actions {[*actions]}")
        kind = type(answer)  # looked at first, which is quicker
        return actions, lambda given: [] if type(given) is not kind and isinstance(given, _SEVERAL) else [given]
    names = _names_of(policy, len(answer), actions) if isinstance(answer, tuple) else None
    known = frozenset(inputs)

    def by_key(given: Any) -> dict[Key, Any]:
        return _outputs_in(given, known) if names is None else dict(zip(names, given, strict=True))

    first = by_key(answer)
    found = [key for key in first if not is_private(key)]
    if missing := [key for key in actions if key not in found]:
        raise KeyError(f"the policy must answer with the action {missing}; it answered with {found}")
    keys = (*actions, *(key for key in found if key not in actions))

    def unpack(given: Any) -> list[Any]:
        outputs = by_key(given)
        return [outputs[key] for key in keys] if len(outputs) == len(first) else []

    return keys, list if names == [*keys] else unpack


def _names_of(policy: Any, count: int, actions: Sequence[Key]) -> list[Key]:
    """Names of the values of a tuple: the policy's `out_keys`, or the actions and numbers."""
    named = getattr(policy, "out_keys", None)
    if named is None:
        return [*actions, *(f"output{i}" for i in range(1, count - len(actions) + 1))][:count]
    if len(named) != count:
        raise ValueError(f"the policy returned {count} values for its out_keys {list(named)}")
    return [as_key(as_tuple(key)) for key in named]


def _outputs_in(answer: Any, inputs: Collection[Key], group: tuple[str, ...] = ()) -> dict[Key, Any]:
    """Leaves by key, but inputs; keys of a plain dict may be nested, tuples or both."""
    found: dict[Key, Any] = {}
    for name, value in answer.items():
        key = name if isinstance(name, str) and not group else as_key((*group, *as_tuple(name)))
        if isinstance(value, Mapping):
            found |= _outputs_in(value, inputs, as_tuple(key))
        elif key not in inputs:
            found[key] = value
    return found


def taker(example: Any, *, action: bool, bare: bool) -> Take:
    """How an output `[*B, …]` like this one becomes an array `[B, …]`.

    Where numpy lacks the dtype it is a tensor; an action is float32 then, as envs take no tensors.
    """
    convert: Any = methodcaller("numpy", force=True) if isinstance(example, torch.Tensor) else np.asarray
    try:
        convert(example)
    except TypeError:
        convert = (lambda value: value.float().numpy(force=True)) if action else (lambda value: value.detach().cpu())
    return (lambda value: convert(value)[None]) if bare else convert


def changed(name: str, what: str, keys: Iterable[Key]) -> TypeError:
    """The error of a policy whose outputs have changed since its construction."""
    return TypeError(f"{name} {what}, unlike at construction; it must give {[*keys]} in the same form at every step")


def require_sources(missing: Sequence[Key], spec: HostSpec) -> None:
    """Raise `KeyError` if a policy reads what neither the env nor the policy itself writes."""
    if missing:
        raise KeyError(f"the policy reads {[*missing]}; the env writes {[*spec.observed]}; write a memory to 'next'")


def require_fitting(keys: Sequence[Key], leaves: Leaves, spec: ArraySpec) -> None:
    """Check outputs `[B, …]` against the envs.

    Raises:
        TypeError: no numbers, or an action of the wrong dtype.
        ValueError: not one row per env, or an action of the wrong shape.
    """
    n, lead = spec.num_envs, spec.batch_shape
    for leaf, value in zip(spec.action, leaves, strict=False):
        wanted, got = (*lead, *leaf.shape), tuple(value.shape if lead else value.shape[1:])
        if wanted != got:
            wants = f"wants {wanted}: it must answer with one action per env, for instance sampled from its logits"
            raise ValueError(f"the policy's {leaf.key!r} has shape {got}; {leaf.space} with batch shape {lead} {wants}")
        kinds = _KINDS[leaf.dtype.kind] + ("b" if isinstance(leaf.space, spaces.MultiBinary) else "")
        if value.dtype.kind not in kinds:
            raise TypeError(f"the policy's {leaf.key!r} has dtype {value.dtype}; {leaf.space} wants {leaf.dtype}")
    for key, value in zip(keys, leaves, strict=True):
        if not isinstance(value, torch.Tensor) and value.dtype.kind not in "biufc":
            raise TypeError(f"the policy's {key!r} is {value.flat[0]!r}; it must be a tensor, an array or a number")
        if (got := tuple(value.shape))[:1] != (n,):
            raise ValueError(f"the policy's {key!r} has shape {got}; it must begin with the batch shape {lead}")


class Memory:
    """What a policy remembers: its state, and `is_init`, the flag of an episode's first step, if it reads that.

    Args:
        lead: leading dimensions of what is remembered: B or `*B`.
        wanted: what the policy reads and the env does not write.

    Attributes:
        state: keys of the state.
        keys: those, then `"is_init"` if it is wanted.
        leaves: what the next step reads, one per key; `None` for a state whose shape is not known yet.
    """

    def __init__(self, lead: tuple[int, ...], wanted: Iterable[Key] = ()) -> None:
        self._lead = lead
        keys = dict.fromkeys(wanted)
        self.state = tuple(key for key in keys if key != IS_INIT)
        self.keys = (*self.state, IS_INIT) if IS_INIT in keys else self.state
        self.leaves: Leaves = [np.ones((*lead, 1), np.bool_) if key == IS_INIT else None for key in self.keys]
        self._before, self._not_init = self.leaves, [zeros_like(leaf) for leaf in self.leaves[len(self.state) :]]
        self._at: list[int] = []

    def learn(self, keys: Sequence[Key], outputs: Leaves) -> None:
        """Begin with a state of zeros, given the outputs of a first step and their keys."""
        self._at = [keys.index(under_next(key)) for key in self.state]
        self.leaves = [*(zeros_like(outputs[at]) for at in self._at), *self.leaves[len(self._at) :]]
        self._before = self.leaves

    def keep(self, outputs: Leaves) -> Leaves:
        """Remember the state in the outputs of a step, which are as those learnt from; what the step itself read."""
        self._before = self.leaves
        # Copied: a policy may write again into what it gave.
        self.leaves = [*(copied(outputs[at]) for at in self._at), *self._not_init]
        return self._before

    def begin(self, envs: Sequence[int]) -> None:
        """Episodes begin in these envs: nothing is remembered of them."""
        self.leaves = [copied(leaf) for leaf in self.leaves]
        for key, leaf in zip(self.keys, self.leaves, strict=True):
            leaf.reshape(prod(self._lead), *leaf.shape[len(self._lead) :])[list(envs)] = key == IS_INIT

    def rewind(self) -> None:
        """Go back to before the last step."""
        self.leaves = self._before


def copied(leaf: Any) -> Any:
    """A copy of an array or tensor."""
    return leaf.clone(memory_format=torch.contiguous_format) if isinstance(leaf, torch.Tensor) else leaf.copy()


def blank_like(leaf: Any) -> Any:
    """Make an array or tensor like this one, filled with NaN, or with 0 where the dtype has no NaN."""
    if isinstance(leaf, torch.Tensor):
        return torch.full_like(leaf, torch.nan) if leaf.is_floating_point() else torch.zeros_like(leaf)
    return np.full_like(leaf, np.nan) if leaf.dtype.kind in "fc" else np.zeros_like(leaf)


def zeros_like(leaf: Any) -> Any:
    """Zeros like an array or tensor."""
    return torch.zeros_like(leaf) if isinstance(leaf, torch.Tensor) else np.zeros_like(leaf)
