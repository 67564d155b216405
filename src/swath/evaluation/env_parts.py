"""What an env is made of, from the outermost wrapper to the envs at the bottom, as far as it can be looked into.

Running statistics are held still while the env is evaluated, or take those that are sent; recorders among TorchRL's
transforms are written or emptied; monitors say where episodes end. torchrl and Stable-Baselines3 are not imported for
it: whoever has such an env has done that.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import wrappers
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorRewardWrapper, VectorWrapper
from gymnasium.wrappers import vector as vector_wrappers
from torch import nn

from swath.rollout.hosts.vector import is_from_stable_baselines
from swath.weights.snapshot import Manifest, Snapshot, fitting, initialize, owner

_FLAG = "update_running_mean"
_NORMALISING = (
    *(wrappers.NormalizeObservation, wrappers.NormalizeReward),
    *(vector_wrappers.NormalizeObservation, vector_wrappers.NormalizeReward),
)
_CHANGING_REWARDS = (gym.RewardWrapper, VectorRewardWrapper, wrappers.NormalizeReward, vector_wrappers.NormalizeReward)
_COUNTING = (wrappers.RecordEpisodeStatistics, vector_wrappers.RecordEpisodeStatistics)
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*|\[-?\d+\])*")
_MOMENTS = ("mean", "var", "count")


def layers(env: Any) -> Iterator[Any]:
    """The env, its transforms, what it wraps, the envs of a vector env or list; those of other processes are left out.

    Outermost first.
    """
    if isinstance(env, list | tuple):
        for inner in env:
            yield from layers(inner)
        return
    yield env
    yield from layers(_below(env))


def _below(env: Any) -> list[Any]:
    """The next layers: what an env wraps, or the envs that it steps together."""
    if isinstance(env, gym.Wrapper | VectorWrapper):
        return [env.env]
    if isinstance(env, SyncVectorEnv):
        return [*env.envs]
    if isinstance(env, _torchrl("TransformedEnv")):
        return [env.transform, env.base_env]
    if isinstance(env, _torchrl("Compose")):
        return [*env]
    if is_from_stable_baselines(type(env), "VecEnv"):
        return [env.venv] if "venv" in vars(env) else [*vars(env).get("envs", [])]
    return []


def _torchrl(name: str) -> Any:
    """A class of TorchRL's; nothing is an instance of what is returned where torchrl is not imported."""
    return getattr(sys.modules.get("torchrl.envs"), name, ())


# Monitors


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
    norms = (layer for layer in layers(env) if is_from_stable_baselines(type(layer), "VecNormalize"))
    changing = [layer for layer in layers(env) if isinstance(layer, _CHANGING_REWARDS)]
    return sorted({type(layer).__name__ for layer in (*changing, *(norm for norm in norms if norm.norm_reward))})


# Recorders


def recorders(env: Any) -> list[Any]:
    """Transforms at any depth that have a `dump` of their own."""
    plain, several = _torchrl("Transform"), _torchrl("Compose")
    transforms = [layer for layer in layers(env) if isinstance(layer, plain) and not isinstance(layer, several)]
    return [each for each in transforms if type(each).dump is not plain.dump]


def empty_recorders(env: Any) -> None:
    """Recorders at any depth forget what they have seen."""
    for recorder in recorders(env):
        for name, emptied in (("obs", []), ("td", []), ("count", 0)):
            if isinstance(vars(recorder).get(name), type(emptied)):
                setattr(recorder, name, emptied)


def dump_recorders(env: Any, step: int) -> list[str]:
    """Have the recorders of the outermost env write what they have seen; what went wrong, in words."""
    failures = []
    for recorder in recorders(env.transform) if isinstance(env, _torchrl("TransformedEnv")) else ():
        try:
            recorder.dump(**({"step": step} if "step" in signature(recorder.dump).parameters else {}))
        except Exception as error:  # noqa: BLE001  it is logged, and the evaluation stands
            failures.append(f"{type(recorder).__name__}.dump raised {type(error).__name__}: {error}")
    return failures


def renders(env: Any) -> bool:
    """Whether a single env, or a batch of TorchRL's, renders frames as arrays."""
    mode = getattr(env, "render_mode", None)
    modes = mode() if callable(mode) else mode  # TorchRL's batches ask each of their envs
    return "rgb_array" in modes if isinstance(modes, list | tuple) else modes == "rgb_array"


# Running statistics


@contextmanager
def frozen(env: Any) -> Iterator[None]:
    """No step within updates a running mean or variance of the env; the flags are put back at the end.

    Found are gymnasium's wrappers, Stable-Baselines3's `VecNormalize`, and `VecNorm` among the transforms of an env
    that can be looked into. Of an `AsyncVectorEnv`, whose envs live in other processes, the outermost wrapper of each
    env is reached.
    """
    with ExitStack() as before:
        for layer in layers(env):
            if isinstance(layer, AsyncVectorEnv):
                if all(layer.call("has_wrapper_attr", _FLAG)):
                    before.callback(layer.set_attr, _FLAG, list(layer.get_attr(_FLAG)))
                    layer.set_attr(_FLAG, values=False)
            elif (flag := _flag_of(layer)) is not None:
                before.callback(setattr, layer, flag, getattr(layer, flag))
                setattr(layer, flag, flag == "frozen")
        yield


def _flag_of(layer: Any) -> str | None:
    """The attribute that says whether a layer's statistics stand still, or are updated."""
    if isinstance(layer, _NORMALISING):
        return _FLAG
    if isinstance(layer, (_torchrl("VecNorm"), _torchrl("VecNormV2"))):
        return "frozen"
    return "training" if is_from_stable_baselines(type(layer), "VecNormalize") else None


def parts_at(env: Any, path: str) -> list[Any]:
    """What a path of names and indices leads to, in each copy of the env: modules and statistics; none if nowhere.

    The first name is that of the outermost layer of each copy that has it.
    """
    found, steps = [], re.findall(r"-?\w+", path) if _PATH.fullmatch(path) else []
    for part in _holders(env, steps[0]) if steps else ():
        try:
            for step in steps:
                part = getattr(part, step) if step.isidentifier() else part[int(step)]  # noqa: PLW2901
        except (AttributeError, LookupError, TypeError):
            continue
        found.append(part)
    return found if all(isinstance(part, nn.Module) or has_moments(part) for part in found) else []


def paths_of(env: Any) -> list[str]:
    """Paths that lead somewhere: statistics, and the transforms of the outermost env."""
    paths = [name for name in ("obs_rms", "return_rms", "ret_rms") if parts_at(env, name)]
    if isinstance(env, _torchrl("TransformedEnv")):
        several = isinstance(env.transform, _torchrl("Compose"))
        paths += [f"transform[{place}]" for place in range(len(env.transform))] if several else ["transform"]
    return paths


def _holders(env: Any, name: str) -> Iterator[Any]:
    if isinstance(env, list | tuple):
        for each in env:
            yield from _holders(each, name)
    elif name in dir(env):
        yield env
    else:
        yield from _holders(_below(env), name)


def has_moments(value: Any) -> bool:
    """Whether this is an object, or a mapping of three, with mean, variance and count."""
    if isinstance(value, Mapping):
        return set(value.keys()) == set(_MOMENTS)
    return not isinstance(value, nn.Module | torch.Tensor) and all(hasattr(value, name) for name in _MOMENTS)


def moments_of(value: Any) -> dict[str, torch.Tensor]:
    """Mean, variance and count as tensors of their own, in float64."""
    given = value if isinstance(value, Mapping) else {name: getattr(value, name) for name in _MOMENTS}
    plain = {name: each.detach().cpu() if isinstance(each, torch.Tensor) else each for name, each in given.items()}
    return {name: torch.from_numpy(np.array(each, dtype=np.float64)) for name, each in plain.items()}


def change(model_id: str, part: Any, weights: Snapshot) -> Callable[[], None]:
    """Check that weights fit a module or statistics; what puts them in, in the types that are there.

    Raises:
        TypeError: there is nothing that takes weights.
        KeyError: other names.
        ValueError: other shapes.
    """
    held = moments_of(part) if has_moments(part) else part
    if isinstance(held, nn.Module):
        initialize(held, weights)
    if (manifest := Manifest.of(held)).empty:
        raise TypeError(f"weights were sent for {model_id!r}, which has none; leave them out")
    given = manifest.fitted(weights)
    for name in manifest.extras & given.keys():
        mine, theirs = _shapes(part.get_submodule(owner(name)).get_extra_state()), _shapes(given[name])
        if mine and mine != theirs:
            raise (ValueError if mine.keys() == theirs.keys() else KeyError)(
                f"statistics for {model_id!r} have the shapes {theirs}, it has {mine}; nothing was changed"
            )
    is_alike = given.keys() == {*weights.places, *weights.extras}  # then they need not be copied under other names
    copy_in = fitting(weights if is_alike else manifest.copied(given), held)

    def put() -> None:
        copy_in()
        for name, value in held.items() if held is not part else ():
            before = getattr(part, name)
            is_array = isinstance(before, np.ndarray)
            setattr(part, name, value.numpy().astype(before.dtype) if is_array else type(before)(value.item()))

    return put


def _shapes(extra: Any) -> dict[str, Any]:
    state = extra if isinstance(extra, Mapping) else {}
    return {name: tuple(value.shape) if isinstance(value, torch.Tensor) else None for name, value in state.items()}


def state_of(part: Any) -> Any:
    """The state of a module or of statistics.

    Raises:
        AttributeError: it has none.
    """
    return moments_of(part) if has_moments(part) else part.state_dict()
