"""The host for a `VecEnv` of Stable-Baselines3, which is not imported here: what is one is told by its class's module.

step ──▶ obs, rewards, dones, infos      where done: reset already; infos[i]["terminal_observation"] is the last
                                         observation, infos[i]["TimeLimit.truncated"] says how it ended
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from swath.rollout.hosts.base import Ended, EnvRaised, Transition
from swath.rollout.hosts.specs import ArraySpec
from swath.rollout.spaces import Array, Leaves, action_leaves, joiner, observation_leaves, unbatched

_PACKAGE = "stable_baselines3"
_LAST = "terminal_observation"
_CUT = "TimeLimit.truncated"


class VecEnvHost:
    """A `VecEnv`, stepped as a whole. It takes one seed for all of its envs.

    Args:
        env: the `VecEnv`.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self.spec = ArraySpec(
            num_envs=env.num_envs,
            batch_shape=(env.num_envs,),
            observation=observation_leaves(env.observation_space),
            action=action_leaves(env.action_space),
            action_space=env.action_space,
            resettable=False,
            alone=False,
            seeding="layout",
        )
        self._join = joiner(env.action_space)
        self._after: Leaves = []
        self._begun: set[int] = set()
        self._seed: int | None = None
        self._closed = False

    @property
    def env(self) -> Any:
        """The `VecEnv`."""
        return self._env

    def reset_all(self, seeds: Sequence[int] | None = None) -> Leaves:
        """Begin an episode in every env; the first seed is that of all."""
        try:
            if seeds is not None:
                self._seed = int(seeds[0])
                self._env.seed(self._seed)
            return self._leaves(self._env.reset())
        except Exception as error:
            raise EnvRaised(0, error) from error

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:  # noqa: ARG002
        """The episodes that these envs have begun by themselves; they cannot be seeded."""
        if not self._begun.issuperset(envs):
            raise RuntimeError(f"{self._env} cannot reset envs {sorted(set(envs) - self._begun)} before they end")
        fresh = [leaf.copy() for leaf in onto]
        for leaf, begun in zip(fresh, self._after, strict=True):
            leaf[list(envs)] = begun[list(envs)]
        return fresh

    def step(self, action: Leaves) -> Transition:
        """Advance every env, also retired ones."""
        try:
            observation, reward, done, infos = self._env.step(self._join(action))
        except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
            everyone = [(env, error) for env in range(self.spec.num_envs)]
            return Transition([], np.zeros(self.spec.num_envs), failed=everyone)
        self._after = self._leaves(observation)
        ended = [_end(int(env), infos[env]) for env in np.flatnonzero(done)]
        self._begun = {env for env, _, _ in ended}
        there = self._with_last(infos) if ended else self._after
        return Transition(there, np.array(reward), ended, info=list(infos))

    def step_one(self, env: int, action: Leaves) -> Transition:
        """Not possible: a `VecEnv` steps as a whole."""
        raise RuntimeError(f"env {env} of {self._env} cannot be stepped alone (got {len(action)} leaves)")

    def rebuild(self) -> Leaves:
        """Not possible: it was given as an instance."""
        raise RuntimeError(f"{self._env} was given as an instance and cannot be built anew")

    def retire(self, envs: Sequence[int]) -> None:
        """Nothing to do: rows of these envs are ignored by whoever retired them."""

    def render(self, env: int) -> Array | None:
        """A frame of this env, if it renders `"rgb_array"`."""
        if self._env.render_mode != "rgb_array":
            return None
        frame = self._env.get_images()[env]
        return None if frame is None else np.asarray(frame)

    def seed_of(self, env: int) -> int | None:
        """The seed of this env: the `VecEnv`'s plus its number, as it deals them out."""
        return None if self._seed is None else self._seed + env

    def close(self) -> None:
        """Close the `VecEnv`; twice is fine."""
        if not self._closed:
            self._closed = True
            self._env.close()

    def _leaves(self, batch: Any) -> Leaves:
        return unbatched(batch, self.spec.observation)

    def _with_last(self, infos: Sequence[dict[str, Any]]) -> Leaves:
        there = [leaf.copy() for leaf in self._after]
        for env in self._begun:
            last = unbatched(infos[env][_LAST], self.spec.observation)
            for leaf, value in zip(there, last, strict=True):
                leaf[env] = value
        return there


def is_vec_env(env: object) -> bool:
    """Whether this is a `VecEnv` of Stable-Baselines3."""
    return is_from_stable_baselines(type(env), "VecEnv")


def is_from_stable_baselines(kind: type, *names: str) -> bool:
    """Whether a class is, or derives from, one of that package with one of these names."""
    return any(base.__name__ in names and base.__module__.partition(".")[0] == _PACKAGE for base in kind.__mro__)


def _end(env: int, info: dict[str, Any]) -> Ended:
    cut = bool(info.get(_CUT, False))
    return env, not cut, cut
