"""Running statistics of an env, held still while it is evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gymnasium import wrappers
from gymnasium.vector import AsyncVectorEnv
from gymnasium.wrappers import vector as vector_wrappers

from swath.evaluate.layers import layers
from swath.evaluate.transforms import FROZEN, frozen_makers, makers_to_be, statistics_of
from swath.rollout.hosts.vec_env import is_from_stable_baselines

_FLAG = "update_running_mean"
_GYMNASIUM = (
    wrappers.NormalizeObservation,
    wrappers.NormalizeReward,
    vector_wrappers.NormalizeObservation,
    vector_wrappers.NormalizeReward,
)


@contextmanager
def frozen(env: Any) -> Iterator[None]:
    """No step within updates a running mean or variance of the env; the wrappers' flags are put back at the end.

    Batches of TorchRL that build their envs later, maybe in other processes, build them so. Of an `AsyncVectorEnv`,
    whose envs live in other processes, the outermost such wrapper of each env is reached.
    """
    before = [(layer, flag, getattr(layer, flag)) for layer, flag in _flags(env)]
    to_be = [(batch, batch.create_env_fn) for batch in makers_to_be(env)]
    remote = [(layer, layer.get_attr(_FLAG)) for layer in layers(env) if _has_remote_flags(layer)]
    try:
        for layer, flag, _ in before:
            setattr(layer, flag, flag == FROZEN)
        for batch, makers in to_be:
            batch.create_env_fn = frozen_makers(makers)
        for vector, _ in remote:
            vector.set_attr(_FLAG, values=False)
        yield
    finally:
        for batch, makers in to_be:
            batch.create_env_fn = makers
        for layer, flag, value in before:
            setattr(layer, flag, value)
        for vector, values in remote:
            vector.set_attr(_FLAG, list(values))


def _flags(env: Any) -> Iterator[tuple[Any, str]]:
    yield from ((transform, FROZEN) for transform in statistics_of(env))
    for layer in layers(env):
        if isinstance(layer, _GYMNASIUM):
            yield layer, _FLAG
        elif is_from_stable_baselines(type(layer), "VecNormalize"):
            yield layer, "training"


def _has_remote_flags(layer: Any) -> bool:
    return isinstance(layer, AsyncVectorEnv) and all(layer.call("has_wrapper_attr", _FLAG))
