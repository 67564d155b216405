"""The host for a `VecEnv` of Stable-Baselines3, which is not imported here: the module of its class says what it is.

step ──▶ obs, rewards, dones, infos      where done: reset already; infos[i]["terminal_observation"] is the last
                                         observation, infos[i]["TimeLimit.truncated"] says how it ended
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from swath.rollout.hosts.vector import VectorHost

_PACKAGE = "stable_baselines3"


class AsVectorEnv(VectorEnv[Any, Any, Any]):
    """A `VecEnv` with the interface of gymnasium's vector envs, in mode `SAME_STEP`. It takes one seed for all.

    Args:
        env: the `VecEnv`.
    """

    def __init__(self, env: Any) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.vec_env, self.num_envs, self.render_mode = env, env.num_envs, getattr(env, "render_mode", None)
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:  # noqa: ARG002  it takes none
        """Observations and infos of a reset of all envs."""
        if seed is not None:
            self.vec_env.seed(seed)
        return self.vec_env.reset(), [{}] * self.num_envs

    def step(self, actions: Any) -> Any:
        """As gymnasium's; the infos are a list."""
        observation, reward, done, infos = self.vec_env.step(actions)
        cut = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos]) & done
        lasts = [
            {**info, "final_obs": info["terminal_observation"]} if over else info
            for info, over in zip(infos, done, strict=True)
        ]
        return observation, reward, done & ~cut, cut, lasts

    def render(self) -> Any:
        """A frame of each env."""
        return self.vec_env.get_images()

    def close_extras(self) -> None:
        """Close it."""
        self.vec_env.close()


class VecEnvHost(VectorHost):
    """A `VecEnv`, stepped as a whole.

    Args:
        env: the `VecEnv`.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(AsVectorEnv(env))

    @property
    def env(self) -> Any:
        """The `VecEnv`."""
        return self.envs[0].vec_env


def is_vec_env(env: object) -> bool:
    """Whether this is a `VecEnv` of Stable-Baselines3."""
    return is_from_stable_baselines(type(env), "VecEnv")


def is_from_stable_baselines(kind: type, *names: str) -> bool:
    """Whether a class is, or derives from, one of that package with one of these names."""
    return any(base.__name__ in names and base.__module__.partition(".")[0] == _PACKAGE for base in kind.__mro__)
