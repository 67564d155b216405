"""One step of a TorchRL env: what `env.step` does, without looking up each time what was looked up before."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase

from swath.keys import NEXT, Key
from swath.rollout.hosts.torchrl_gym import short_way

Step = Callable[[TensorDictBase], Any]
"""Writes `"next"` into the TensorDict `[*B]` that it is given."""


def step_of(env: Any) -> Step:
    """The quickest way to step this env that surely gives what `env.step` gives."""
    return short_way(env) or (_checked_step(env) if _is_usual(env) else env.step)


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
    """Whether the env steps as `EnvBase` does."""
    base = sys.modules["torchrl.envs.common"].EnvBase
    kind = type(env)
    usual = kind.step is base.step and kind._step_proc_data is base._step_proc_data  # noqa: SLF001  to be sure of them
    return usual and kind._complete_done == base._complete_done and not env.run_type_checks  # noqa: SLF001  as above


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
