"""TorchRL's envs without batch size: each as a gymnasium env, which may fail without harm to the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym

from swath.rollout.hosts.base import EnvRaised
from swath.rollout.hosts.gymnasium import require_equal_spaces
from swath.rollout.hosts.torchrl import is_torchrl_env
from swath.rollout.hosts.torchrl_arrays import TorchRLArrayHost
from swath.rollout.spaces import Array, Leaves, packer
from swath.rollout_workers.hosts.sub_envs import SubEnvHost
from swath.rollout_workers.nests import nest_of, template_of


class SingleEnv(gym.Env[Any, Any]):
    """An `EnvBase` without batch size.

    Args:
        env: it.

    Raises:
        TypeError: observations or actions that are no arrays.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self._host = TorchRLArrayHost(env)
        self.observation_space, self.action_space = self._host.spaces
        self._template = template_of(self.observation_space)
        self._pack = packer(self._host.spec.action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:  # noqa: ARG002  it takes none
        """Begin an episode."""
        try:
            leaves = self._host.reset_all(None if seed is None else [seed])
        except EnvRaised as raised:
            raise raised.cause from raised.cause.__cause__
        return self._nest(leaves), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Make a step."""
        moved = self._host.step(self._pack([action]))
        for _, error in moved.failed:
            raise error
        terminated = any(ended for _, ended, _ in moved.ended)
        truncated = any(cut for _, _, cut in moved.ended)
        return self._nest(moved.observation), float(moved.reward[0]), terminated, truncated, {}

    def render(self) -> Any:
        """A frame, if it makes any."""
        return self._host.render(0)

    def close(self) -> None:
        """Close it; twice is fine."""
        self._host.close()

    def _nest(self, leaves: Leaves) -> Any:
        return nest_of(self._template, [leaf[0] for leaf in leaves])


class SingleEnvHost(SubEnvHost):
    """A list of such envs, which users see as they made them.

    Args:
        envs: at least one.
        make: makes as many others.

    Raises:
        TypeError: observations or actions that are no arrays.
        ValueError: envs that differ in their spaces.
    """

    def __init__(self, envs: Sequence[Any], make: Callable[[], Sequence[Any]]) -> None:
        singles = [SingleEnv(env) for env in envs]
        require_equal_spaces(singles)
        super().__init__(singles, make=lambda: [SingleEnv(env) for env in make()], exact=True)

    @property
    def env(self) -> Any:
        """The env itself if there is one, else the list of envs."""
        envs = [single.env for single in self._singles]
        return envs[0] if len(envs) == 1 else envs

    def renew(self, env: int, make: Callable[[], Any]) -> None:
        """Close this env and put what `make` builds in its place."""
        super().renew(env, lambda: SingleEnv(make()))

    def render(self, env: int) -> Array | None:
        """A frame of this env, if it makes any."""
        frame: Array | None = self._singles[env].render()
        return frame

    @property
    def _singles(self) -> list[SingleEnv]:
        return [env for env in self._envs if isinstance(env, SingleEnv)]


def is_single(env: object) -> bool:
    """Whether this is an `EnvBase` without batch size."""
    return is_torchrl_env(env) and not is_batch(env)


def is_batch(env: Any) -> bool:
    """Whether this is an `EnvBase` with sub-envs of its own."""
    return is_torchrl_env(env) and len(env.batch_size) > 0


def as_gymnasium(env: Any) -> Any:
    """An `EnvBase` without batch size as a gymnasium env; every other env as it is."""
    return SingleEnv(env) if is_single(env) else env
