"""Outputs of a policy, by key as arrays `[B, …]`, and its recurrent state.

state ──▶ policy ──▶ ("next", state) ──▶ copied ──▶ state of the next step, zero where an episode begins
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from math import prod
from operator import methodcaller
from typing import Any, TypeAlias

import numpy as np
import torch
from gymnasium import spaces

from swath.keys import IS_INIT, NEXT, Key, as_key, as_tuple, is_private, under_next
from swath.rollout.hosts.base import ArraySpec, HostSpec
from swath.rollout.memory import as_tensor, copy_leaf, kind_of, zeros_like
from swath.rollout.spaces import Leaves

# Turns an answer of the policy into its values, in the order of its keys; fewer values if the answer has another form.
Unpack: TypeAlias = Callable[[Any], list[Any]]

# Turns a value into a leaf.
ToLeaf: TypeAlias = Callable[[Any], Any]

_SEVERAL_VALUES = (tuple, Mapping, type(None))

# The kinds of numpy dtypes that are accepted for an action of each kind.
_KINDS = {"f": "f", "i": "iu", "u": "iu", "b": "b"}


def unpacker(
    policy: Any, actions: Sequence[Key], inputs: Iterable[Key], answer: Any, *, with_private: bool = False
) -> tuple[Sequence[Key], Unpack]:
    """Return the keys of the policy's outputs, and a function that unpacks answers of this form.

    The action leaves come first, and private entries last, or not at all: `None` where one is missing later.

    Raises:
        KeyError: an answer without action.
        TypeError: an answer of `None`.
        ValueError: a tuple that does not fit the policy's `out_keys`, or an entry `"next"`.
    """
    if answer is None:
        raise TypeError(f"the policy returned None; it must return the actions {[*actions]}: is a `return` missing?")
    if not isinstance(answer, _SEVERAL_VALUES):
        if len(actions) > 1:
            raise KeyError(f"the policy returned one {type(answer).__name__}, the env wants the actions {[*actions]}")
        kind = type(answer)  # compared first, which is quicker

        def wrap(value: Any) -> list[Any]:
            return [] if type(value) is not kind and isinstance(value, _SEVERAL_VALUES) else [value]

        return actions, wrap
    names = _tuple_keys(policy, len(answer), actions) if isinstance(answer, tuple) else None
    input_keys = frozenset(inputs)

    def to_dict(answer: Any) -> dict[Key, Any]:
        return _output_leaves(answer, input_keys) if names is None else dict(zip(names, answer, strict=True))

    first = to_dict(answer)
    public = [key for key in first if not is_private(key)]
    if missing := [key for key in actions if key not in public]:
        raise KeyError(f"the policy must answer with the action {missing}; it answered with {public}")
    if NEXT in public:
        raise ValueError("the policy answered with an entry 'next', which batches have already; give it another name")
    private = [key for key in first if is_private(key)] if with_private else []
    keys = (*actions, *(key for key in public if key not in actions))
    kinds = {key: type(value) for key, value in first.items()}

    def unpack(answer: Any) -> list[Any]:
        is_like_first = type(answer) is dict and {key: type(value) for key, value in answer.items()} == kinds
        outputs = answer if is_like_first and names is None else to_dict(answer)  # plans give flat dicts
        return [outputs[key] for key in keys] if len(outputs) == len(first) else []

    if private:
        return (*keys, *private), partial(_unpack_private, to_dict, keys, private)
    return keys, list if names == [*keys] else unpack


def _unpack_private(
    to_dict: Callable[[Any], dict[Key, Any]], keys: Sequence[Key], private: Sequence[Key], answer: Any
) -> list[Any]:
    """Return the outputs, then the private entries."""
    outputs = to_dict(answer)
    n_public = len(outputs) - sum(map(is_private, outputs))
    return [*(outputs[key] for key in keys), *map(outputs.get, private)] if n_public == len(keys) else []


def _tuple_keys(policy: Any, count: int, actions: Sequence[Key]) -> list[Key]:
    """Return keys for the values of a tuple: `out_keys`, or the actions and then `output1`, `output2` and so on."""
    out_keys = getattr(policy, "out_keys", None)
    if out_keys is None:
        return [*actions, *(f"output{i}" for i in range(1, count - len(actions) + 1))][:count]
    if len(out_keys) != count:
        raise ValueError(f"the policy returned {count} values for its out_keys {list(out_keys)}")
    return [as_key(as_tuple(key)) for key in out_keys]


def _output_leaves(answer: Any, inputs: Collection[Key], group: tuple[str, ...] = ()) -> dict[Key, Any]:
    """Return the leaves by key, except inputs; keys of a plain dict may be nested, tuples or both."""
    leaves: dict[Key, Any] = {}
    for name, value in answer.items():
        key = name if isinstance(name, str) and not group else as_key((*group, *as_tuple(name)))
        if isinstance(value, Mapping):
            leaves |= _output_leaves(value, inputs, as_tuple(key))
        elif key not in inputs:
            leaves[key] = value
    return leaves


def leaf_converter(example: Any, *, action: bool, bare: bool, device: torch.device | None = None) -> ToLeaf:
    """Return a function that turns an output `[*B, …]` like `example` into an array `[B, …]`, or a tensor on a device.

    If numpy lacks the dtype, the function returns a tensor, or float32 for an action, since envs take no tensors.
    """
    if device is not None:
        return partial(_as_tensor_on, device)
    convert: Any = methodcaller("numpy", force=True) if isinstance(example, torch.Tensor) else np.asarray
    try:
        convert(example)
    except TypeError:
        convert = (lambda value: value.float().numpy(force=True)) if action else (lambda value: value.detach().cpu())
    return (lambda value: convert(value)[None]) if bare else convert


def _as_tensor_on(device: torch.device, value: Any) -> torch.Tensor:
    tensor = value if type(value) is torch.Tensor and value.device == device else torch.as_tensor(value, device=device)
    return tensor.detach() if tensor.requires_grad else tensor


def changed_error(name: str, change: str, keys: Iterable[Key]) -> TypeError:
    """Return the error of a policy whose outputs have changed since its construction."""
    return TypeError(f"{name} {change}, unlike at construction; it must give {[*keys]} in the same form at every step")


def require_no_missing(missing: Sequence[Key], spec: HostSpec) -> None:
    """Raise `KeyError` for entries that a policy reads, and neither env nor policy writes."""
    if missing:
        raise KeyError(
            f"the policy reads {[*missing]}; the env writes {[*spec.observation_keys]}; write a memory to 'next'"
        )


def require_fitting(keys: Sequence[Key], leaves: Leaves, spec: ArraySpec) -> None:
    """Check outputs `[B, …]` against the envs.

    Raises:
        TypeError: values that are no numbers, or an action of the wrong dtype.
        ValueError: not one row per env, or an action of the wrong shape.
    """
    n, batch = spec.num_envs, spec.batch_shape
    for leaf, value in zip(spec.action, leaves, strict=False):
        expected, form = (*batch, *leaf.shape), tuple(value.shape if batch else value.shape[1:])
        if expected != form:
            hint = f"wants {expected}: it must answer with one action per env, for instance sampled from its logits"
            raise ValueError(
                f"the policy's {leaf.key!r} has shape {form}; {leaf.space} with batch shape {batch} {hint}"
            )
        kinds = _KINDS[leaf.dtype.kind] + ("b" if isinstance(leaf.space, spaces.MultiBinary) else "")
        if kind_of(value) not in kinds:
            raise TypeError(f"the policy's {leaf.key!r} has dtype {value.dtype}; {leaf.space} wants {leaf.dtype}")
    for key, value in zip(keys, leaves, strict=True):
        if not isinstance(value, torch.Tensor) and value.dtype.kind not in "biufc":
            raise TypeError(f"the policy's {key!r} is {value.flat[0]!r}; it must be a tensor, an array or a number")
        if (shape := tuple(value.shape))[:1] != (n,):
            raise ValueError(f"the policy's {key!r} has shape {shape}; it must begin with the batch shape {batch}")


class Memory:
    """Recurrent state of a policy, and `is_init`, the flag of an episode's first step, if the policy reads it.

    Private entries are what a TensorDict module keeps from call to call, also where an episode begins, as in TorchRL.

    Args:
        batch_shape: leading dimensions of the state: B or `*B`.
        read: keys that the policy reads and the env does not write.
        device: where the state is, as tensors; `None` for arrays.
        private: keys of the private entries.
        supplies_init: whether a policy with private entries gets `is_init` although the batch does not show it.

    Attributes:
        state: keys of the state.
        keys: keys of the state, then `"is_init"` if the policy reads it.
        shown: the keys, among `keys`, that the batch has.
        leaves: values for the next step, one per key; `None` for a state of unknown shape.
        private: keys of the private entries.
        kept: values of the private entries; `None` for one that is missing.
    """

    def __init__(
        self,
        batch_shape: tuple[int, ...],
        read: Iterable[Key] = (),
        device: torch.device | None = None,
        private: Sequence[Key] = (),
        *,
        supplies_init: bool = False,
    ) -> None:
        self._batch_shape, self.private = batch_shape, tuple(private)
        self.kept: list[Any] = [None] * len(private)
        self._kept_before = self.kept
        keys = dict.fromkeys(read)
        self.state = tuple(key for key in keys if key != IS_INIT)
        self.shown = (*self.state, IS_INIT) if IS_INIT in keys else self.state
        self.keys = (*self.state, IS_INIT) if private and supplies_init else self.shown
        is_init: Any = np.ones((*batch_shape, 1), np.bool_)
        is_init = is_init if device is None else torch.from_numpy(is_init).to(device)
        self.leaves: Leaves = [is_init if key == IS_INIT else None for key in self.keys]
        self._before, self._not_init = self.leaves, [zeros_like(leaf) for leaf in self.leaves[len(self.state) :]]
        self._indices: list[int] = []

    def initialize(self, keys: Sequence[Key], outputs: Leaves) -> None:
        """Set the state to zeros, in the shapes of the outputs of a first step."""
        self._indices = [keys.index(under_next(key)) for key in self.state]
        self.leaves = [*(zeros_like(outputs[index]) for index in self._indices), *self.leaves[len(self._indices) :]]
        self._before = self.leaves

    def update(self, outputs: Leaves) -> Leaves:
        """Take the next state from the outputs of a step; return the state that the step has read, for the batch."""
        self._before = self.leaves
        # The policy may write into its outputs again.
        self.leaves = [*(copy_leaf(outputs[index]) for index in self._indices), *self._not_init]
        return self._before[: len(self.shown)]

    def keep(self, outputs: Leaves) -> Leaves:
        """Keep the private entries, which are the last outputs of a step, and return the others."""
        n = len(outputs) - len(self.private)
        self._kept_before, self.kept = self.kept, outputs[n:]
        return outputs[:n]

    def begin(self, envs: Sequence[int] | torch.Tensor) -> None:
        """Set the state of the envs, or of a mask of envs, to zero and `is_init` to true, where an episode begins."""
        if isinstance(envs, torch.Tensor):
            is_beginning = envs.reshape(self._batch_shape)
            for at, leaf in enumerate(map(as_tensor, self.leaves)):
                mask = is_beginning.view(*self._batch_shape, *[1] * (leaf.dim() - is_beginning.dim()))
                self.leaves[at] = leaf.masked_fill(mask, self.keys[at] == IS_INIT)
            return
        self.leaves = [copy_leaf(leaf) for leaf in self.leaves]
        for key, leaf in zip(self.keys, self.leaves, strict=True):
            leaf.reshape(prod(self._batch_shape), *leaf.shape[len(self._batch_shape) :])[list(envs)] = key == IS_INIT

    def rewind(self) -> None:
        """Restore the state before the last step."""
        self.leaves, self.kept = self._before, self._kept_before
