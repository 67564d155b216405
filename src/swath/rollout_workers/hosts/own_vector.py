"""The host for a user's own `VectorEnv`: stepped as a whole, reset one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from swath.keys import OBSERVATION
from swath.rollout.hosts.base import ArraySpec, Ends, EnvRaised, Transition, close_broken
from swath.rollout.hosts.returned import as_flag, as_rewards, bad_answer
from swath.rollout.spaces import Array, Leaves, action_leaves, packer, plain_leaves, splitter
from swath.rollout_workers.vector_env import VectorEnv

STEP = "a VectorEnv has vector_step(actions) -> observations, rewards, terminateds, truncateds, infos: lists"


class OwnVectorHost:
    """The sub-envs of a `VectorEnv`.

    Args:
        env: the vector env.
        make: makes another one like it.
    """

    def __init__(self, env: VectorEnv, make: Callable[[], VectorEnv]) -> None:
        self._env, self._make = env, make
        self.spec = ArraySpec(
            num_envs=env.num_envs,
            batch_shape=(env.num_envs,),
            observation=plain_leaves(env.observation_space, OBSERVATION),
            action=action_leaves(env.action_space),
            action_space=env.action_space,
            alone=False,
        )
        self._pack = packer(self.spec.observation)
        self._split = splitter(env.action_space, env.num_envs, writable=False)
        self._seeds: list[int | None] = [None] * env.num_envs
        self._infos: list[Mapping[str, Any]] = [{}] * env.num_envs
        self._closed = False

    @property
    def env(self) -> Any:
        """The vector env."""
        return self._env

    def reset_all(self, seeds: Sequence[int] | None = None) -> Leaves:
        """Begin an episode in every sub-env."""
        try:
            observations, infos = self._env.vector_reset(seeds=None if seeds is None else list(seeds))
            self._infos = list(infos)
            leaves = self._pack(observations)
        except Exception as error:
            raise EnvRaised(0, error) from error
        self._seeds = list(seeds or self._seeds)
        return leaves

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these sub-envs."""
        fresh, self._infos = [leaf.copy() for leaf in onto], self._infos.copy()
        for env, seed in zip(envs, seeds or [None] * len(envs), strict=True):
            try:
                observation, self._infos[env] = self._env.reset_at(env, seed=seed)
                rows = self._pack([observation])
            except Exception as error:
                raise EnvRaised(env, error) from error
            for leaf, row in zip(fresh, rows, strict=True):
                leaf[env] = row[0]
            self._seeds[env] = self._seeds[env] if seed is None else seed
        return fresh

    def step(self, action: Leaves) -> Transition:
        """Advance every sub-env."""
        actions = self._split(action)
        try:
            answer = self._env.vector_step(actions)
        except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
            return self._failed(EnvRaised(0, error))
        try:
            observations, rewards, terminateds, truncateds, infos = answer
            ended = _ended(terminateds, truncateds)
            self._infos = list(infos)
            return Transition(self._pack(observations), as_rewards(list(rewards)), ended, info=self._infos)
        except EnvRaised as raised:
            return self._failed(raised)
        except Exception as error:  # noqa: BLE001  as above
            return self._failed(EnvRaised(0, bad_answer(error, self._env, STEP)))

    def _failed(self, raised: EnvRaised) -> Transition:
        """All have failed, as they only step together; first the one that is to blame."""
        n = self.spec.num_envs
        order = sorted(range(n), key=lambda env: env != raised.env)
        return Transition([], np.zeros(n), failed=[(env, raised.cause) for env in order])

    def step_one(self, env: int, action: Leaves) -> Transition:
        """Not possible: it steps as a whole."""
        raise RuntimeError(f"sub-env {env} of {self._env} cannot be stepped alone (got {len(action)} leaves)")

    def restart(self, env: int) -> None:
        """Let the vector env make one sub-env anew."""
        self._env.restart_at(env)

    def rebuild(self) -> Leaves:
        """Close it, make another and reset it."""
        close_broken(self._env.close)
        self._env = self._make()
        return self.reset_all()

    def retire(self, envs: Sequence[int]) -> None:
        """Nothing to do: their rows are ignored by whoever retired them."""

    def render(self, env: int) -> Array | None:  # noqa: ARG002  it shows none
        """None: it makes no frames."""
        return None

    def info_of(self, env: int) -> Mapping[str, Any]:
        """What this sub-env said with its latest observation."""
        return self._infos[env]

    def seed_of(self, env: int) -> int | None:
        """The seed this sub-env was last given."""
        return self._seeds[env]

    def close(self) -> None:
        """Close it; twice is fine."""
        if not self._closed:
            self._closed = True
            self._env.close()


def _ended(terminateds: Iterable[Any], truncateds: Iterable[Any]) -> Ends:
    """The episodes that ended.

    Raises:
        EnvRaised: what a sub-env says of it is neither yes nor no.
    """
    ended: list[tuple[int, bool, bool]] = []
    for env, (terminated, truncated) in enumerate(zip(terminateds, truncateds, strict=True)):
        if terminated or truncated:
            try:
                ended.append((env, as_flag("terminated", terminated), as_flag("truncated", truncated)))
            except ValueError as error:
                raise EnvRaised(env, error) from error
    return Ends.listed(ended)
