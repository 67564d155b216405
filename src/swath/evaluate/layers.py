"""What an env is made of, from the outermost wrapper to the envs at the bottom, as far as it can be looked into."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
from gymnasium import wrappers
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorRewardWrapper, VectorWrapper
from gymnasium.wrappers import vector as vector_wrappers

from swath.rollout.hosts.torchrl import is_torchrl_env
from swath.rollout.hosts.vec_env import is_from_stable_baselines, is_vec_env

_REWARD_WRAPPERS = (
    gym.RewardWrapper,
    wrappers.NormalizeReward,
    VectorRewardWrapper,
    vector_wrappers.NormalizeReward,
)

_OF_STATISTICS = "return_queue"
"""What only a `RecordEpisodeStatistics` has."""


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
    if is_torchrl_env(env):
        return _below_torchrl(env)
    if is_vec_env(env):
        return [env.venv] if "venv" in vars(env) else [*vars(env).get("envs", [])]
    return []


def _below_torchrl(env: Any) -> list[Any]:
    """What a TorchRL env wraps or steps: the env below its transforms, or the envs of a batch that lives here."""
    envs = sys.modules["torchrl.envs"]
    if isinstance(env, envs.TransformedEnv):
        return [env.base_env]
    return [*env._envs] if isinstance(env, envs.SerialEnv) and not env.is_closed else []  # noqa: SLF001


def is_monitored(env: Any) -> bool:
    """Whether every episode is watched by a wrapper that writes `info["episode"]` where it ends."""
    return any(_is_monitor(layer) or _has_monitors(layer) for layer in layers(env))


def keeps_books_of_all(env: Any) -> bool:
    """Whether a wrapper of a whole vector env keeps its books; a reset of some envs would clear those of all."""
    return any(isinstance(layer, vector_wrappers.RecordEpisodeStatistics) for layer in layers(env))


def is_opaque(env: Any) -> bool:
    """Whether some of its layers live in other processes."""
    return any(map(is_elsewhere, layers(env)))


def is_elsewhere(layer: Any) -> bool:
    """Whether the envs that this layer steps live in other processes."""
    if is_torchrl_env(layer):
        return isinstance(layer, sys.modules["torchrl.envs"].ParallelEnv)
    return isinstance(layer, AsyncVectorEnv) or is_from_stable_baselines(type(layer), "SubprocVecEnv")


def reward_changers(env: Any) -> list[str]:
    """Names of the known wrappers that change rewards."""
    return sorted({type(layer).__name__ for layer in layers(env) if _changes_rewards(layer)})


def _is_monitor(layer: Any) -> bool:
    known = wrappers.RecordEpisodeStatistics, vector_wrappers.RecordEpisodeStatistics
    return isinstance(layer, known) or is_from_stable_baselines(type(layer), "Monitor", "VecMonitor")


def _has_monitors(layer: Any) -> bool:
    """Whether envs that this layer has in other processes say of themselves that each is watched so."""
    if isinstance(layer, AsyncVectorEnv):
        return all(layer.call("has_wrapper_attr", _OF_STATISTICS))
    monitor = getattr(sys.modules.get("stable_baselines3.common.monitor"), "Monitor", None)
    if monitor is None or not is_from_stable_baselines(type(layer), "SubprocVecEnv"):
        return False
    return all(layer.env_is_wrapped(monitor))


def _changes_rewards(layer: Any) -> bool:
    if is_from_stable_baselines(type(layer), "VecNormalize"):
        return bool(layer.norm_reward)
    return isinstance(layer, _REWARD_WRAPPERS)
