"""Settings of the env: which one, and what is done to its observations, actions and rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeAlias, Unpack

from swath.rollout_workers.config.checks import flag, optional, positive, refuse, space, table
from swath.rollout_workers.config.holder import Holder
from swath.rollout_workers.config.joining import deep
from swath.rollout_workers.config.settings import UNCHANGED, NoEffect, Setting

if TYPE_CHECKING:
    from gymnasium import Space

    from swath.rollout_workers.config.other_names import OtherNames

EnvName: TypeAlias = str | type | Callable[..., Any]
"""A gymnasium id, a registered name, a class, or a function of the `EnvContext`."""


def _env(name: str, value: object) -> EnvName:
    if not isinstance(value, str) and not callable(value):
        refuse(name, value, "an id, a name from register_env, a class, or a callable that makes the env")
    return value


def _content(name: str, value: object) -> dict[str, Any]:
    return {} if value is None else table(name, value)


def _clip(name: str, value: object) -> bool | float:
    return bool(value) if isinstance(value, bool) else positive(name, value)


class EnvironmentSettings(Holder):
    """What `environment` sets."""

    env = Setting(optional(_env), default=None)
    env_config = Setting(_content, default={}, join=deep)
    observation_space = Setting(optional(space), default=None)
    action_space = Setting(optional(space), default=None)
    clip_rewards = Setting(optional(_clip), default=None)
    normalize_actions = Setting(flag, default=True)
    clip_actions = Setting(flag, default=False)
    render_env = Setting(flag, default=False)
    disable_env_checking = NoEffect(
        flag, "envs are not stepped to check them: give validate_env a check", default=False
    )

    def environment(
        self,
        env: EnvName | None = UNCHANGED,
        *,
        env_config: Mapping[str, Any] = UNCHANGED,
        observation_space: Space[Any] | None = UNCHANGED,
        action_space: Space[Any] | None = UNCHANGED,
        clip_rewards: bool | float | None = UNCHANGED,
        normalize_actions: bool = UNCHANGED,
        clip_actions: bool = UNCHANGED,
        render_env: bool = UNCHANGED,
        **others: Unpack[OtherNames],
    ) -> Self:
        """Say which env is used, and what becomes of its actions and rewards.

        Args:
            env: what a `WorkerSet` without `env_creator` makes: a gymnasium id, a registered name, a class or callable.
            env_config: what the `EnvContext` holds; added to what is there, dict by dict.
            observation_space: of policies for which neither spec nor env has one.
            action_space: likewise.
            clip_rewards: True takes the sign, a number clips to [-number, number].
            normalize_actions: policies act in [-1, 1], which is stretched to the bounds of a `Box`.
            clip_actions: then clip to those bounds.
            render_env: make a video of the first sub-env of worker 1.
            **others: old names, and settings without effect.
        """
        return self._given(locals())
