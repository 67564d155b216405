"""What an env is made of, from the outermost wrapper to the envs at the bottom, as far as it can be looked into.

Running statistics are held still while the env is evaluated; recorders among TorchRL's transforms are written or
emptied; monitors say where episodes end. torchrl and Stable-Baselines3 are not imported for it: whoever has such an env
has done that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import gymnasium as gym
from gymnasium import wrappers
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorRewardWrapper, VectorWrapper
from gymnasium.wrappers import vector as vector_wrappers

from swath.rollout.hosts.vec_env import is_from_stable_baselines, is_vec_env

_FLAG = "update_running_mean"
_NORMALISING = (
    wrappers.NormalizeObservation,
    wrappers.NormalizeReward,
    vector_wrappers.NormalizeObservation,
    vector_wrappers.NormalizeReward,
)
_CHANGING_REWARDS = (
    gym.RewardWrapper,
    wrappers.NormalizeReward,
    VectorRewardWrapper,
    vector_wrappers.NormalizeReward,
)
_COUNTING = (wrappers.RecordEpisodeStatistics, vector_wrappers.RecordEpisodeStatistics)


def layers(env: Any) -> Iterator[Any]:
    """The env, what it wraps, the envs of a vector env or list, and so on; those of other processes are left out."""
    if isinstance(env, list | tuple):
        for inner in env:
            yield from layers(inner)
        return
    yield env
    yield from layers(below(env))


def below(env: Any) -> list[Any]:
    """What an env wraps, or the envs that it steps together; nothing where they live in other processes."""
    if isinstance(env, gym.Wrapper | VectorWrapper):
        return [env.env]
    if isinstance(env, SyncVectorEnv):
        return [*env.envs]
    if _is_transformed(env):
        return [env.base_env]
    if is_vec_env(env):
        return [env.venv] if "venv" in vars(env) else [*vars(env).get("envs", [])]
    return []


# Statistics


@contextmanager
def frozen(env: Any) -> Iterator[None]:
    """No step within updates a running mean or variance of the env; the flags are put back at the end.

    Found are gymnasium's wrappers, Stable-Baselines3's `VecNormalize`, and `VecNorm` among the transforms of an env
    that can be looked into. Of an `AsyncVectorEnv`, whose envs live in other processes, the outermost wrapper of each
    env is reached.
    """
    before = [(layer, flag, getattr(layer, flag)) for layer, flag in _flags(env)]
    remote = [(layer, layer.get_attr(_FLAG)) for layer in layers(env) if _has_remote_flags(layer)]
    try:
        for layer, flag, _ in before:
            setattr(layer, flag, flag == "frozen")
        for vector, _ in remote:
            vector.set_attr(_FLAG, values=False)
        yield
    finally:
        for layer, flag, value in before:
            setattr(layer, flag, value)
        for vector, values in remote:
            vector.set_attr(_FLAG, list(values))


def _flags(env: Any) -> Iterator[tuple[Any, str]]:
    for layer in layers(env):
        yield from ((transform, "frozen") for transform in _transforms_of(layer) if _keeps_statistics(transform))
        if isinstance(layer, _NORMALISING):
            yield layer, _FLAG
        elif is_from_stable_baselines(type(layer), "VecNormalize"):
            yield layer, "training"


def _has_remote_flags(layer: Any) -> bool:
    return isinstance(layer, AsyncVectorEnv) and all(layer.call("has_wrapper_attr", _FLAG))


def _keeps_statistics(transform: Any) -> bool:
    kinds = sys.modules["torchrl.envs.transforms"]
    return isinstance(transform, kinds.VecNorm | kinds.VecNormV2)


# Transforms


def transform_paths(env: Any) -> list[str]:
    """Paths to the transforms of the outermost env, as `"transform"` or `"transform[0]"`."""
    if not _is_transformed(env):
        return []
    if isinstance(env.transform, sys.modules["torchrl.envs"].Compose):
        return [f"transform[{place}]" for place in range(len(env.transform))]
    return ["transform"]


def has_recorders(env: Any) -> bool:
    """Whether some transform records, at any depth."""
    return any(True for layer in layers(env) for _ in _recorders_of(layer))


def empty_recorders(env: Any) -> None:
    """Recorders at any depth forget what they have seen."""
    for layer in layers(env):
        for recorder in _recorders_of(layer):
            for name in ("obs", "td"):
                if isinstance(vars(recorder).get(name), list):
                    setattr(recorder, name, [])
            if "count" in vars(recorder):
                recorder.count = 0


def dump_recorders(env: Any, step: int) -> list[str]:
    """Have the recorders of the outermost env write what they have seen; what went wrong, in words."""
    failures = []
    for recorder in _recorders_of(env):
        takes_step = "step" in signature(recorder.dump).parameters
        try:
            recorder.dump(**({"step": step} if takes_step else {}))
        except Exception as error:  # noqa: BLE001  it is logged, and the evaluation stands
            failures.append(f"{type(recorder).__name__}.dump raised {type(error).__name__}: {error}")
    return failures


def _recorders_of(layer: Any) -> Iterator[Any]:
    """Transforms of this layer that have a `dump` of their own."""
    plain: Any = getattr(sys.modules.get("torchrl.envs"), "Transform", None)
    return (each for each in _transforms_of(layer) if type(each).dump is not plain.dump)


def _transforms_of(layer: Any) -> Iterator[Any]:
    return _flat(layer.transform) if _is_transformed(layer) else iter(())


def _flat(transform: Any) -> Iterator[Any]:
    if isinstance(transform, sys.modules["torchrl.envs"].Compose):
        for part in transform:
            yield from _flat(part)
    elif transform is not None:
        yield transform


def _is_transformed(env: Any) -> bool:
    envs = sys.modules.get("torchrl.envs")
    return envs is not None and isinstance(env, envs.TransformedEnv)


# Rewards


def is_monitored(env: Any) -> bool:
    """Whether a wrapper watches every episode and writes `info["episode"]` where it ends."""
    return any(
        isinstance(layer, _COUNTING) or is_from_stable_baselines(type(layer), "Monitor", "VecMonitor")
        for layer in layers(env)
    )


def counts_for_all(env: Any) -> bool:
    """Whether a wrapper of a whole vector env counts its episodes; a reset of some envs would clear all counts."""
    return any(isinstance(layer, vector_wrappers.RecordEpisodeStatistics) for layer in layers(env))


def reward_changers(env: Any) -> list[str]:
    """Names of the known wrappers that change rewards."""
    return sorted({type(layer).__name__ for layer in layers(env) if _changes_rewards(layer)})


def _changes_rewards(layer: Any) -> bool:
    if is_from_stable_baselines(type(layer), "VecNormalize"):
        return bool(layer.norm_reward)
    return isinstance(layer, _CHANGING_REWARDS)
