"""Transforms of TorchRL envs that an evaluation has something to do with: running statistics, and recorders.

torchrl is not imported for it: whoever has such an env has done that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from typing import Any

from swath.evaluate.layers import layers
from swath.rollout.hosts.torchrl import is_torchrl_env

FROZEN = "frozen"
_KEPT = ("obs", "td")


def transforms_of(layer: Any) -> Iterator[Any]:
    """The transforms of this layer of an env, one by one; none if it has none."""
    envs = sys.modules.get("torchrl.envs")
    if envs is not None and isinstance(layer, envs.TransformedEnv):
        yield from _flat(layer.transform)


def statistics_of(env: Any) -> Iterator[Any]:
    """All transforms of the env, at any depth, that keep running statistics."""
    for layer in layers(env):
        yield from (transform for transform in transforms_of(layer) if _keeps_statistics(transform))


def makers_to_be(env: Any) -> Iterator[Any]:
    """Batches of envs, at any depth, that have yet to build theirs."""
    for layer in layers(env):
        if _is_batch(layer) and layer.is_closed:
            yield layer


def frozen_makers(makers: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
    """The makers of a batch, so that statistics of what they make stand still."""
    return [_frozen_maker(make) for make in makers]


def parts_of(env: Any) -> list[str]:
    """Paths to the transforms of the outermost env, as `"transform"` or `"transform[0]"`."""
    envs = sys.modules.get("torchrl.envs")
    if envs is None or not isinstance(env, envs.TransformedEnv):
        return []
    if isinstance(env.transform, envs.Compose):
        return [f"transform[{place}]" for place in range(len(env.transform))]
    return ["transform"]


def detach_statistics(transform: Any) -> None:
    """What is written into the statistics from now on is seen by no other process that shares them."""
    held = vars(transform).get("_td")
    if held is not None and held.is_shared():
        transform._td = held.clone()  # noqa: SLF001  there is no public way


def empty_recorders(env: Any) -> None:
    """Recorders at any depth forget what they have seen."""
    for layer in layers(env):
        for recorder in filter(_records, transforms_of(layer)):
            for name in _KEPT:
                if isinstance(vars(recorder).get(name), list):
                    setattr(recorder, name, [])
            if "count" in vars(recorder):
                recorder.count = 0


def has_recorders(env: Any) -> bool:
    """Whether some transform records, at any depth."""
    return any(_records(transform) for layer in layers(env) for transform in transforms_of(layer))


def dump_recorders(env: Any, step: int) -> list[str]:
    """Have the recorders of the outermost env write what they have seen; what went wrong, in words."""
    failures = []
    for recorder in filter(_records, transforms_of(env)):
        takes_step = "step" in signature(recorder.dump).parameters
        try:
            recorder.dump(**({"step": step} if takes_step else {}))
        except Exception as error:  # noqa: BLE001  it is told, and the evaluation stands
            failures.append(f"{type(recorder).__name__}.dump raised {type(error).__name__}: {error}")
    return failures


class _FrozenMaker:
    """Makes what another makes, with statistics that stand still."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        env = self._make(*args, **kwargs)
        for transform in statistics_of(env):
            setattr(transform, FROZEN, True)
        return env


def _frozen_maker(make: Any) -> Callable[..., Any]:
    """An `EnvCreator` stays one, with the state that it shares."""
    creator = sys.modules["torchrl.envs"].EnvCreator
    if not isinstance(make, creator):
        return _FrozenMaker(make)
    variant: Any = make.make_variant()
    variant.create_env_fn = sys.modules["torchrl.data.utils"].CloudpickleWrapper(_FrozenMaker(make.create_env_fn))
    made: Callable[..., Any] = variant
    return made


def _flat(transform: Any) -> Iterator[Any]:
    envs = sys.modules["torchrl.envs"]
    if isinstance(transform, envs.Compose):
        for part in transform:
            yield from _flat(part)
    elif transform is not None:
        yield transform


def _keeps_statistics(transform: Any) -> bool:
    kinds = sys.modules["torchrl.envs.transforms"]
    return isinstance(transform, kinds.VecNorm | kinds.VecNormV2)


def _is_batch(layer: Any) -> bool:
    return is_torchrl_env(layer) and isinstance(layer, sys.modules["torchrl.envs.batched_envs"].BatchedEnvBase)


def _records(transform: Any) -> bool:
    return type(transform).dump is not sys.modules["torchrl.envs"].Transform.dump
