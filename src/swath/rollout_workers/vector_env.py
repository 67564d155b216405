"""The base of envs that step several sub-envs themselves, and their host, which treats them as a list of envs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np

from swath.options import count
from swath.rollout.hosts.base import EnvRaised, Transition
from swath.rollout.hosts.gymnasium import EnvListHost
from swath.rollout.hosts.results import bad_answer
from swath.rollout.spaces import Leaves


class VectorEnv:
    """Several sub-envs, real or not, that are stepped together; lists have one entry per sub-env.

    Args:
        observation_space: of one sub-env.
        action_space: of one sub-env.
        num_envs: how many there are.
    """

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], num_envs: int) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.num_envs = count("num_envs", num_envs)

    def vector_reset(
        self, *, seeds: Sequence[int | None] | None = None, options: Sequence[dict[str, Any] | None] | None = None
    ) -> tuple[list[Any], list[dict[str, Any]]]:
        """Begin an episode in every sub-env.

        Args:
            seeds: one per sub-env; None seeds nothing.
            options: one per sub-env.

        Returns:
            Observations and infos.
        """
        raise NotImplementedError(f"{type(self).__name__} has no vector_reset")

    def reset_at(
        self, index: int | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in one sub-env.

        Args:
            index: which; None: the first.
            seed: None seeds nothing.
            options: of the sub-env.

        Returns:
            Observation and info.
        """
        raise NotImplementedError(f"{type(self).__name__} has no reset_at")

    def vector_step(
        self, actions: Sequence[Any]
    ) -> tuple[list[Any], list[float], list[bool], list[bool], list[dict[str, Any]]]:
        """Step every sub-env; a sub-env that has ended is reset by `reset_at` before the next step.

        Returns:
            Observations, rewards, terminated and truncated flags, infos.
        """
        raise NotImplementedError(f"{type(self).__name__} has no vector_step")

    def get_sub_environments(self) -> list[Any]:
        """Return the sub-envs, if they are objects; here none."""
        return []

    def restart_at(self, index: int | None = None) -> None:
        """Close a sub-env that failed, and make another in its place; it is reset afterwards."""
        raise NotImplementedError(f"{type(self).__name__} has no restart_at")

    def close(self) -> None:
        """Close the sub-envs, each once however often it is listed."""
        for env in {id(env): env for env in self.get_sub_environments()}.values():
            env.close()


class SubEnv(gym.Env[Any, Any]):
    """One sub-env of a `VectorEnv`: returns its row of the vector env's results, or is reset alone."""

    row: Any = None

    def __init__(self, vector: VectorEnv, index: int) -> None:
        self.vector, self.index = vector, index
        self.observation_space, self.action_space = vector.observation_space, vector.action_space

    def __str__(self) -> str:
        """Return the sub-env's number and its vector env."""
        return f"sub-env {self.index} of {self.vector}"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:  # noqa: ARG002
        """Begin an episode."""
        return self.vector.reset_at(self.index, seed=seed) if self.row is None else self.step(None)

    def step(self, action: Any) -> Any:  # noqa: ARG002  the vector env has had it
        """Return this sub-env's row of the last step of all sub-envs."""
        row, self.row = self.row, None
        return row

    def close(self) -> None:
        """Close the vector env, if this is the first sub-env."""
        if self.index == 0:
            self.vector.close()


class OwnVectorHost(EnvListHost):
    """The sub-envs of a `VectorEnv`.

    Args:
        env: the vector env.
        make: makes another one like it.
    """

    step_form = "a VectorEnv has vector_step(actions) -> observations, rewards, terminateds, truncateds, infos: lists"
    reset_form = "a VectorEnv has reset_at(index, *, seed=None, options=None) -> observation, info; vector_reset: lists"

    def __init__(self, env: VectorEnv, make: Callable[[], VectorEnv]) -> None:
        super().__init__(_sub_envs(env), make=lambda: _sub_envs(make()), exact=True)
        self.spec = replace(self.spec, steps_singly=False)

    @property
    def env(self) -> Any:
        """Return the vector env."""
        return self.envs[0].vector

    def reset_all(self, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in every sub-env."""
        try:
            self._deal(*self.env.vector_reset(seeds=None if seeds is None else list(seeds)))
        except Exception as error:
            raise EnvRaised(0, error) from error
        return super().reset_all(seeds)

    def step(self, action: Leaves, only: int | None = None) -> Transition:  # noqa: ARG002  they step together
        """Advance every sub-env."""
        returned = None
        try:
            returned = self.env.vector_step(self._split(action))
            self._deal(*returned)
        except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
            failed = error if returned is None else bad_answer(error, self.env, self.step_form)
            return Transition([], np.zeros(self.spec.num_envs), failed=[(0, failed)])
        return super().step(action)

    def replace_env(self, env: int, make: Callable[[], Any]) -> None:  # noqa: ARG002  the vector env makes it
        """Rebuild one sub-env by the vector env's `restart_at`."""
        self.env.restart_at(env)

    def _deal(self, *lists: Iterable[Any]) -> None:
        """Give each sub-env its row of the vector env's results."""
        for sub_env, row in zip(self.envs, zip(*lists, strict=True), strict=True):
            sub_env.row = row


def _sub_envs(vector: VectorEnv) -> list[SubEnv]:
    return [SubEnv(vector, index) for index in range(vector.num_envs)]
