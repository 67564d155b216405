"""One step of a TorchRL env: what `env.step` does, without looking up each time what was looked up before."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from inspect import getattr_static
from typing import Any

import torch
from tensordict import TensorDictBase

from swath.keys import NEXT, Key

Step = Callable[[TensorDictBase], Any]
"""Writes `"next"` into the TensorDict `[*B]` that it is given."""


def step_of(env: Any) -> Step:
    """The quickest way to step any env that surely gives what `env.step` gives."""
    return _checked_step(env) if _is_usual(env) else env.step


def _checked_step(env: Any) -> Step:
    """TorchRL's own order of calls; what an env gives is only completed where it is not complete."""
    whole = _expected(env)

    def step(td: TensorDictBase) -> None:
        preset = td.get(NEXT, None)
        following = env._step(td)  # noqa: SLF001  what `env.step` calls
        if not _is_whole(following, whole):
            following = env._step_proc_data(following)  # noqa: SLF001  as above
        if preset is not None:
            following.update(preset.exclude(*following.keys(include_nested=True, leaves_only=True)))
        td.set(NEXT, following)

    return step


def _is_usual(env: Any) -> bool:
    """Whether the env steps, and completes what a step gave, as `EnvBase` does."""
    base, kind = sys.modules["torchrl.envs.common"].EnvBase, type(env)
    same = all(getattr_static(kind, name) is getattr_static(base, name) for name in ("step", "_step_proc_data"))
    return same and not env.run_type_checks and _completes_as_usual(env)


def _completes_as_usual(env: Any) -> bool:
    """Of a transformed env, whether the env inside does: it is asked to."""
    envs = sys.modules["torchrl.envs.common"], sys.modules["torchrl.envs"]
    if type(env) is envs[1].TransformedEnv:
        return _completes_as_usual(env.base_env)
    return getattr_static(type(env), "_complete_done") is getattr_static(envs[0].EnvBase, "_complete_done")


def _expected(env: Any) -> list[tuple[Key, torch.Size]]:
    """Rewards and end flags, with their shapes: what TorchRL would otherwise complete."""
    rewards, flags = env.full_reward_spec, env.full_done_spec
    shapes = [(key, rewards[key].shape) for key in env.reward_keys]
    return [*shapes, *((key, flags[key].shape) for key in env.done_keys)]


def _is_whole(following: TensorDictBase, expected: Sequence[tuple[Key, torch.Size]]) -> bool:
    for key, shape in expected:
        entry = following.get(key, None)
        if entry is None or entry.shape != shape:
            return False
    return True
