"""TorchRL's transforms as functions of arrays: one table, one function per transform.

    step     entries at the root [B, …], entries under "next" ──▶ further entries under "next"
    reset    first entries of episodes [B, …]                 ──▶ further entries

Shapes and dtypes are TorchRL's: `[B, 1]` for flags, rewards, counts and sums. A transform is in the table by its exact
class; a plan is compared with TorchRL itself before it is used.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDict
from torch.nn.parameter import is_lazy

from swath.keys import ACTION, DONE, TRUNCATED
from swath.rollout.plans import NoPlan
from swath.rollout.spaces import Array

Entries: TypeAlias = dict[str, Array]


@dataclass(frozen=True)
class Stage:
    """One transform as functions.

    Attributes:
        config: the settings that the functions depend on.
        step: adds entries under `"next"`, given the entries at the root and under `"next"`.
        reset: adds entries to the first entries of episodes; `None` if only TorchRL itself begins episodes.
        inverse: returns the action that the env gets; `None` if it gets the action itself.
        repeats: how often the env and the earlier transforms make the step.
    """

    config: tuple[Any, ...]
    step: Callable[[Entries, Entries], None]
    reset: Callable[[Entries], None] | None
    inverse: Callable[[Array], Array] | None = None
    repeats: int = 1


def stage_of(transform: Any, batch_shape: tuple[int, ...]) -> Stage:
    """Return the functions of a transform.

    Args:
        transform: a transform of TorchRL.
        batch_shape: `*B`: `(B,)`, or `()` for one env without a batch dimension.

    Raises:
        NoPlan: it is not in the table, or it is used in a way that the table does not know.
    """
    kind = type(transform)
    make = TABLE.get(kind.__name__)
    if make is None or kind is not getattr(importlib.import_module("torchrl.envs.transforms"), kind.__name__, None):
        raise NoPlan(f"the transform {kind.__name__} is not in the table of plans")
    return make(transform, batch_shape)


def to_numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """Return numpy's dtype for one of torch."""
    return np.asarray(torch.empty(0, dtype=dtype).numpy()).dtype


def _names(keys: Any, kind: str) -> list[str]:
    """Return the keys, which must be strings.

    Raises:
        NoPlan: a key is nested.
    """
    if nested := [key for key in keys if not isinstance(key, str)]:
        raise NoPlan(f"{kind} uses the nested keys {nested}")
    return list(keys)


def _init_tracker(transform: Any, batch_shape: tuple[int, ...]) -> Stage:
    names = _names(transform.init_keys, "InitTracker")

    def step(_: Entries, next_entries: Entries) -> None:
        for name in names:
            if name not in next_entries:
                next_entries[name] = np.zeros((prod(batch_shape), 1), np.bool_)

    def reset(first: Entries) -> None:
        first.update((name, np.ones((prod(batch_shape), 1), np.bool_)) for name in names)

    return Stage((*names,), step, reset)


def _step_counter(transform: Any, batch_shape: tuple[int, ...]) -> Stage:
    (name,), limit = _names(transform.step_count_keys, "StepCounter"), transform.max_steps
    if transform.truncated_key != TRUNCATED or (limit is not None and not transform.update_done):
        raise NoPlan("StepCounter has its own truncated key, or does not update 'done'")

    def step(root: Entries, next_entries: Entries) -> None:
        next_entries[name] = count = root[name] + 1
        if limit is not None:
            next_entries[TRUNCATED] = truncated = (count >= limit) | next_entries[TRUNCATED]
            next_entries[DONE] = truncated | next_entries[DONE]

    def reset(first: Entries) -> None:
        first[name] = np.zeros((prod(batch_shape), 1), np.int64)

    return Stage((name, limit), step, reset)


def _primer(transform: Any, batch_shape: tuple[int, ...]) -> Stage:
    primers, defaults = transform.primers, transform.default_value
    names = _names(primers.keys(include_nested=True, leaves_only=True), "TensorDictPrimer")
    if transform.random or transform.single_default_value or transform.call_before_env_reset:
        raise NoPlan("TensorDictPrimer has random values, one function for all, or begins before the env")
    values = {name: defaults[name] for name in names}
    if not all(isinstance(value, int | float) for value in values.values()):
        raise NoPlan("TensorDictPrimer has default values that are no numbers")
    forms = [(name, tuple(primers[name].shape[len(primers.shape) :]), primers[name].dtype) for name in names]

    def step(root: Entries, next_entries: Entries) -> None:
        for name in names:
            next_entries.setdefault(name, root[name])

    def reset(first: Entries) -> None:
        for name, shape, dtype in forms:
            first[name] = np.full((prod(batch_shape), *shape), values[name], to_numpy_dtype(dtype))

    return Stage((*forms, *values.values()), step, reset)


def _reward_sum(transform: Any, batch_shape: tuple[int, ...]) -> Stage:
    names = [*zip(_names(transform.in_keys, "RewardSum"), _names(transform.out_keys, "RewardSum"), strict=True)]
    if transform.reward_spec:
        raise NoPlan("RewardSum puts its sums among the rewards")

    def step(root: Entries, next_entries: Entries) -> None:
        for reward, name in names:
            next_entries[name] = root[name] + next_entries[reward]

    def reset(first: Entries) -> None:
        first.update((name, np.zeros((prod(batch_shape), 1), np.float32)) for _, name in names)

    return Stage((*names,), step, reset)


def _double_to_float(transform: Any, batch_shape: tuple[int, ...]) -> Stage:  # noqa: ARG001
    inverse = _names(transform.in_keys_inv, "DoubleToFloat")
    if inverse not in ([], [ACTION]) or transform.out_keys_inv != inverse:
        raise NoPlan(f"DoubleToFloat casts the inputs {inverse}")
    casts = (lambda action: action.astype(np.float64)) if inverse else None
    return _map_entries(transform, lambda value: value.astype(np.float32), inverse=casts, config=(*inverse,))


def _observation_norm(transform: Any, batch_shape: tuple[int, ...]) -> Stage:  # noqa: ARG001
    if not transform.initialized:
        raise NoPlan("ObservationNorm is not initialized")
    return _map_entries(transform, _affine_function(transform), config=(bool(transform.standard_normal),))


def _reward_scaling(transform: Any, batch_shape: tuple[int, ...]) -> Stage:  # noqa: ARG001
    return _map_entries(transform, _affine_function(transform), resets=False, config=(bool(transform.standard_normal),))


def _affine_function(transform: Any) -> Callable[[Array], Array]:
    loc, scale = transform.loc, transform.scale  # buffers, which users may write to
    if transform.standard_normal:
        return _wrap_tensor_function(lambda value: (value - loc) / scale)
    return _wrap_tensor_function(lambda value: value * scale + loc)


def _rename(transform: Any, batch_shape: tuple[int, ...]) -> Stage:  # noqa: ARG001
    """Return a stage that copies entries to new names; the env's specs decide which entries are delivered."""
    return _map_entries(transform, lambda value: value)


def _call_transform(transform: Any, batch_shape: tuple[int, ...]) -> Stage:
    """Return a stage that calls the transform with a TensorDict of its inputs, if all of them are present."""
    kind = type(transform).__name__
    sources, names = _names(transform.in_keys, kind), _names(transform.out_keys, kind)
    if transform.in_keys_inv:
        raise NoPlan(f"{kind} changes inputs")

    def apply(entries: Entries) -> None:
        if missing := [name for name in sources if name not in entries]:
            if len(missing) < len(sources):
                raise NoPlan(f"{kind} finds no {missing} where an episode begins")
            return
        values = {name: torch.from_numpy(entries[name] if batch_shape else entries[name][0]) for name in sources}
        answer = transform(TensorDict(values, batch_size=batch_shape))
        for name in names:
            value = answer.get(name).numpy()
            entries[name] = value if batch_shape else value[None]

    return Stage((*sources, *names), lambda _, next_entries: apply(next_entries), apply)


def _cat_frames(transform: Any, batch_shape: tuple[int, ...]) -> Stage:
    """Return a stage that keeps earlier frames in the transform's own buffers."""
    sources, names = _names(transform.in_keys, "CatFrames"), _names(transform.out_keys, "CatFrames")
    buffers, dim, repeats = [*transform.buffers()], transform.dim, transform.padding == "same"
    if batch_shape or any(map(is_lazy, buffers)):
        raise NoPlan("CatFrames has seen no frame, or is on a batch of envs")

    def apply(entries: Entries, *, begins: bool = False) -> None:
        for source, name, buffer in zip(sources, names, buffers, strict=True):
            value = torch.from_numpy(entries[source][0])
            size = value.shape[dim]
            if not begins:
                buffer.copy_(torch.roll(buffer, -size, dim))
            elif repeats:
                buffer.copy_(torch.cat([value] * transform.N, dim))
            else:
                buffer.fill_(transform.padding_value)
            buffer.narrow(dim, buffer.shape[dim] - size, size).copy_(value)
            entries[name] = buffer.numpy().copy()[None]

    config = *sources, *names, transform.N, dim, transform.padding, transform.padding_value
    return Stage(config, lambda _, next_entries: apply(next_entries), partial(apply, begins=True))


def _action_mask(transform: Any, batch_shape: tuple[int, ...]) -> Stage:
    """Return a stage that writes the mask into the spec of the action, from which random actions are drawn."""
    _, mask = names = _names(transform.in_keys, "ActionMask")

    def apply(entries: Entries) -> None:
        transform.action_spec.update_mask(torch.from_numpy(entries[mask] if batch_shape else entries[mask][0]))

    return Stage((*names,), lambda _, next_entries: apply(next_entries), None if batch_shape else apply)


def _frame_skip(transform: Any, batch_shape: tuple[int, ...]) -> Stage:  # noqa: ARG001
    skip = int(transform.frame_skip)
    return Stage((skip,), lambda *_: None, lambda _: None, repeats=skip)


def _noop_reset(transform: Any, batch_shape: tuple[int, ...]) -> Stage:  # noqa: ARG001
    return Stage((transform.noops, transform.random), lambda *_: None, None)


def _vec_norm(transform: Any, batch_shape: tuple[int, ...]) -> Stage:
    """Return a stage that updates the transform's own statistics in place."""
    kind = type(transform).__name__
    if not getattr(transform, "stateful", True) or getattr(transform, "reduce_batch_dims", False):
        raise NoPlan(f"{kind} is stateless, or reduces batch dimensions")
    make, updates = (_update_v1, _update_v2)[kind == "VecNormV2"], dict[str, Callable[[torch.Tensor], torch.Tensor]]()
    names = [*zip(_names(transform.in_keys, kind), _names(transform.out_keys, kind), strict=True)]

    def find_statistics() -> None:
        state = transform.get_extra_state() or {}
        updates.update(
            (name, make(transform, state, name)) for name, _ in names if f"{name}_sum" in state or "V2" in kind
        )

    def apply(entries: Entries) -> None:
        for source, name in names:
            if source not in entries:
                continue
            value = torch.from_numpy(entries[source] if batch_shape else entries[source][0])
            if source in updates:
                with transform.lock:
                    changed = updates[source](value).numpy()
            else:  # the first value of its kind, for which the transform makes room
                changed = transform(TensorDict({source: value}, batch_size=batch_shape)).get(name).numpy()
                find_statistics()
            entries[name] = changed if batch_shape else changed[None]

    find_statistics()
    config = *names, transform.decay, transform.eps, transform.frozen, str(transform.in_keys)
    # Where some envs of a batch begin episodes, the statistics also count what the batch has kept of the others.
    return Stage(config, lambda _, next_entries: apply(next_entries), None if batch_shape else apply)


def _update_v1(transform: Any, state: Mapping[str, torch.Tensor], name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    total, squares, count = (state[f"{name}_{part}"] for part in ("sum", "ssq", "count"))
    decay, eps, frozen = transform.decay, transform.eps, transform.frozen

    def update(value: torch.Tensor) -> torch.Tensor:
        if not frozen:
            rows = value if value.ndim > total.ndim else value.unsqueeze(0)
            total.mul_(decay).add_(rows.sum(0))
            squares.mul_(decay).add_(rows.pow(2).sum(0))
            count.mul_(decay).add_(len(rows))
        mean = total / count
        std = (squares / count - mean.pow(2)).clamp_min(eps).sqrt()
        return (value - mean) / std.clamp_min(eps)

    return update


def _update_v2(transform: Any, state: Mapping[str, torch.Tensor], name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    loc, var, count = (state[transform.SEP.join((part, name))] for part in ("loc", "var", "count"))
    decay, eps, frozen = transform.decay, transform.eps, transform.frozen

    def update(value: torch.Tensor) -> torch.Tensor:
        if not frozen:
            count.add_(1)
            weight = 1 - decay if decay != 1.0 else 1 / count
            loc.lerp_(value, weight)
            var.lerp_(value.pow(2), weight)
        correction = (1 - (count * math.log(decay)).exp()).to(value.dtype) if decay < 1.0 else 1
        scale = ((var - loc.pow(2)) / correction).sqrt().clamp_min(eps)
        return (value - loc / correction) / scale

    return update


def _wrap_tensor_function(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Array], Array]:
    def call(value: Array) -> Array:
        return function(torch.from_numpy(value)).numpy()

    return call


def _map_entries(
    transform: Any,
    function: Callable[[Array], Array],
    *,
    resets: bool = True,
    inverse: Callable[[Array], Array] | None = None,
    config: tuple[Any, ...] = (),
) -> Stage:
    """Return a stage that applies one function to each of the entries that a transform reads.

    Args:
        transform: the transform, with `in_keys` and `out_keys`.
        function: a function of one entry.
        resets: whether the transform applies it to first entries of episodes, too.
        inverse: returns the action that the env gets.
        config: settings of `function`.
    """
    kind = type(transform).__name__
    if inverse is None and transform.in_keys_inv:
        raise NoPlan(f"{kind} changes inputs")
    names = [*zip(_names(transform.in_keys, kind), _names(transform.out_keys, kind), strict=True)]

    def step(_: Entries, next_entries: Entries) -> None:
        for source, name in names:
            next_entries[name] = function(next_entries[source])

    def reset(first: Entries) -> None:
        for source, name in names if resets else ():
            if source in first:
                first[name] = function(first[source])

    return Stage((*names, *config), step, reset, inverse)


TABLE: dict[str, Callable[[Any, tuple[int, ...]], Stage]] = {
    "ActionMask": _action_mask,
    "CatFrames": _cat_frames,
    "DoubleToFloat": _double_to_float,
    "FrameSkipTransform": _frame_skip,
    "InitTracker": _init_tracker,
    "NoopResetEnv": _noop_reset,
    "ObservationNorm": _observation_norm,
    "RenameTransform": _rename,
    "RewardScaling": _reward_scaling,
    "RewardSum": _reward_sum,
    "StepCounter": _step_counter,
    "TensorDictPrimer": _primer,
    "VecNorm": _vec_norm,
    "VecNormV2": _vec_norm,
    **dict.fromkeys(
        (
            *("CatTensors", "ClipTransform", "FlattenObservation", "GrayScale", "PermuteTransform", "Resize"),
            *("RewardClipping", "SignTransform", "SqueezeTransform", "ToTensorImage", "UnsqueezeTransform"),
        ),
        _call_transform,
    ),
}
"""The transforms that have a plan, by the names of their classes."""
