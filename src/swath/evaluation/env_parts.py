"""The parts of an env, from the outermost wrapper to the innermost envs of this process.

Running statistics are not updated while the env is evaluated, or get the driver's; recorders among TorchRL's
transforms are written or emptied; monitors report where episodes end. This module imports neither torchrl nor
Stable-Baselines3: users of their envs have imported them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from inspect import signature
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import wrappers
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorRewardWrapper, VectorWrapper
from gymnasium.wrappers import vector as vector_wrappers
from torch import nn

from swath.rollout.hosts.parallel import ProcessEnvs
from swath.rollout.hosts.vector import is_from_stable_baselines
from swath.weights.snapshot import Manifest, Snapshot, initialize, module_path, plan_copy

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
    """Yield the env, its transforms, the env that it wraps, the envs of a vector env or list; the outermost first.

    Envs of other processes are left out.
    """
    if isinstance(env, list | tuple):
        for inner in env:
            yield from layers(inner)
        return
    yield env
    yield from layers(_inner_layers(env))


def _inner_layers(env: Any) -> list[Any]:
    """Return the next layers: the env that an env wraps, or the envs that it steps together."""
    if isinstance(env, gym.Wrapper | VectorWrapper):
        return [env.env]
    if isinstance(env, SyncVectorEnv):
        return [*env.envs]
    if isinstance(env, torchrl_class("TransformedEnv")):
        return [env.transform, env.base_env]
    if isinstance(env, torchrl_class("Compose")):
        return [*env]
    if is_from_stable_baselines(type(env), "VecEnv"):
        return [env.venv] if "venv" in vars(env) else [*vars(env).get("envs", [])]
    return []


def torchrl_class(name: str) -> Any:
    """Return a class of TorchRL; without torchrl an empty tuple, of which no object is an instance."""
    return getattr(sys.modules.get("torchrl.envs"), name, ())


# Monitors


def names_of_layers(env: Any, test: Callable[[Any], bool]) -> list[str]:
    """Return the names of the classes of the layers that pass a test, in env processes, too."""
    if isinstance(env, ProcessEnvs):
        return [name for names in env.map(partial(names_of_layers, test=test)) for name in names]
    return [type(layer).__name__ for layer in layers(env) if test(layer)]


def is_monitor(layer: Any) -> bool:
    """Tell whether a wrapper watches every episode and writes `info["episode"]` at its end."""
    return isinstance(layer, _COUNTING) or is_from_stable_baselines(type(layer), "Monitor", "VecMonitor")


def counts_whole_batch(layer: Any) -> bool:
    """Tell whether a wrapper counts the episodes of a whole vector env; a reset of some envs would clear all counts."""
    return isinstance(layer, vector_wrappers.RecordEpisodeStatistics)


def changes_rewards(layer: Any) -> bool:
    """Tell whether this is a known wrapper that changes rewards."""
    is_norm = is_from_stable_baselines(type(layer), "VecNormalize") and layer.norm_reward
    return is_norm or isinstance(layer, _CHANGING_REWARDS)


# Recorders


def recorders(env: Any) -> list[Any]:
    """Return the transforms at any depth that override `dump`."""
    plain, compose = torchrl_class("Transform"), torchrl_class("Compose")
    transforms = [layer for layer in layers(env) if isinstance(layer, plain) and not isinstance(layer, compose)]
    return [transform for transform in transforms if type(transform).dump is not plain.dump]


def empty_recorders(env: Any) -> None:
    """Clear the recorders at any depth."""
    for recorder in recorders(env):
        for name, empty in (("obs", []), ("td", []), ("count", 0)):
            if isinstance(vars(recorder).get(name), type(empty)):
                setattr(recorder, name, empty)


def dump_recorders(env: Any, step: int) -> list[str]:
    """Write the recordings of the outermost env; return descriptions of failures."""
    failures = []
    for recorder in recorders(env.transform) if isinstance(env, torchrl_class("TransformedEnv")) else ():
        try:
            recorder.dump(**({"step": step} if "step" in signature(recorder.dump).parameters else {}))
        except Exception as error:  # noqa: BLE001  it is logged, and the evaluation stands
            failures.append(f"{type(recorder).__name__}.dump raised {type(error).__name__}: {error}")
    return failures


def renders(env: Any) -> bool:
    """Tell whether a single env, or a batched TorchRL env, renders frames as arrays."""
    mode = getattr(env, "render_mode", None)
    modes = mode() if callable(mode) else mode  # TorchRL's batches ask each of their envs
    return "rgb_array" in modes if isinstance(modes, list | tuple) else modes == "rgb_array"


# Running statistics


@contextmanager
def without_updates(env: Any) -> Iterator[None]:
    """Keep steps within from updating running means and variances of the env; restore the flags at the end.

    This covers gymnasium's wrappers, Stable-Baselines3's `VecNormalize`, and `VecNorm` among the transforms of envs in
    this process. Of an `AsyncVectorEnv`, whose envs live in other processes, it covers the outermost wrapper of each
    env.
    """
    with ExitStack() as before:
        _stop_updates(env, before)
        yield


def _stop_updates(env: Any, before: ExitStack | None = None) -> None:
    """Keep steps from updating running statistics; `before` restores the flags. Env processes need no `before`."""
    before = ExitStack() if before is None else before
    for layer in layers(env):
        if isinstance(layer, ProcessEnvs):
            layer.map(_stop_updates)
        elif isinstance(layer, AsyncVectorEnv):
            if all(layer.call("has_wrapper_attr", _FLAG)):
                before.callback(layer.set_attr, _FLAG, list(layer.get_attr(_FLAG)))
                layer.set_attr(_FLAG, values=False)
        elif (flag := _flag_of(layer)) is not None:
            before.callback(setattr, layer, flag, getattr(layer, flag))
            setattr(layer, flag, flag == "frozen")


def _flag_of(layer: Any) -> str | None:
    """Return the name of the attribute that switches updates of a layer's statistics; `None` if it has none."""
    if isinstance(layer, _NORMALISING):
        return _FLAG
    if isinstance(layer, (torchrl_class("VecNorm"), torchrl_class("VecNormV2"))):
        return "frozen"
    return "training" if is_from_stable_baselines(type(layer), "VecNormalize") else None


def parts_at(env: Any, path: str) -> list[Any]:
    """Return the module or statistics at a path of names and indices, in each copy of the env; none if there is none.

    The path begins at the outermost layer of each copy that has its first name.
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
    """Return the paths of statistics, and of the transforms of the outermost env."""
    paths = [name for name in ("obs_rms", "return_rms", "ret_rms") if parts_at(env, name)]
    if isinstance(env, torchrl_class("TransformedEnv")):
        is_compose = isinstance(env.transform, torchrl_class("Compose"))
        paths += [f"transform[{i}]" for i in range(len(env.transform))] if is_compose else ["transform"]
    return paths


def _holders(env: Any, name: str) -> Iterator[Any]:
    if isinstance(env, list | tuple):
        for inner in env:
            yield from _holders(inner, name)
    elif name in dir(env):
        yield env
    else:
        yield from _holders(_inner_layers(env), name)


def has_moments(value: Any) -> bool:
    """Tell whether this is an object, or a mapping of three entries, with mean, variance and count."""
    if isinstance(value, Mapping):
        return set(value.keys()) == set(_MOMENTS)
    return not isinstance(value, nn.Module | torch.Tensor) and all(hasattr(value, name) for name in _MOMENTS)


def moments_of(value: Any) -> dict[str, torch.Tensor]:
    """Return copies of mean, variance and count as tensors of float64."""
    moments = value if isinstance(value, Mapping) else {name: getattr(value, name) for name in _MOMENTS}
    arrays = {
        name: value.detach().cpu() if isinstance(value, torch.Tensor) else value for name, value in moments.items()
    }
    return {name: torch.from_numpy(np.array(array, dtype=np.float64)) for name, array in arrays.items()}


def prepare_weights(model_id: str, part: Any, weights: Snapshot) -> Callable[[], None]:
    """Check that weights fit a module or statistics, and return a function that copies them in.

    Raises:
        TypeError: the part takes no weights.
        KeyError: the weights have other names.
        ValueError: the weights have other shapes.
    """
    target = moments_of(part) if has_moments(part) else part
    if isinstance(target, nn.Module):
        initialize(target, weights)
    if (manifest := Manifest.of(target)).empty:
        raise TypeError(f"weights were sent for {model_id!r}, which has none; leave them out")
    entries = manifest.match(weights)
    for name in manifest.extras & entries.keys():
        shapes, sent_shapes = _shapes(part.get_submodule(module_path(name)).get_extra_state()), _shapes(entries[name])
        if shapes and shapes != sent_shapes:
            raise (ValueError if shapes.keys() == sent_shapes.keys() else KeyError)(
                f"statistics for {model_id!r} have the shapes {sent_shapes}, it has {shapes}; nothing was changed"
            )
    is_alike = entries.keys() == {*weights.places, *weights.extras}  # names need no map
    copy_tensors = plan_copy(weights if is_alike else manifest.snapshot(entries), target)

    def copy_in() -> None:
        copy_tensors()
        for name, value in target.items() if target is not part else ():
            before = getattr(part, name)  # keeps its type
            is_array = isinstance(before, np.ndarray)
            setattr(part, name, value.numpy().astype(before.dtype) if is_array else type(before)(value.item()))

    return copy_in


def _shapes(extra: Any) -> dict[str, Any]:
    state = extra if isinstance(extra, Mapping) else {}
    return {name: tuple(value.shape) if isinstance(value, torch.Tensor) else None for name, value in state.items()}


def state_of(part: Any) -> Any:
    """Return the state of a module or of statistics.

    Raises:
        AttributeError: the part has no state.
    """
    return moments_of(part) if has_moments(part) else part.state_dict()
