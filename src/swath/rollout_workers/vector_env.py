"""Base of envs that step several sub-envs themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium import Space

from swath.options import count


class VectorEnv:
    """Several sub-envs, or what passes for them, that are stepped together; lists have one entry per sub-env.

    Args:
        observation_space: of one sub-env.
        action_space: of one sub-env.
        num_envs: how many there are.
    """

    def __init__(self, observation_space: Space[Any], action_space: Space[Any], num_envs: int) -> None:
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
        """Let every sub-env take its action; one that has ended is reset by `reset_at` before the next step.

        Returns:
            Observations, rewards, terminated and truncated flags, infos.
        """
        raise NotImplementedError(f"{type(self).__name__} has no vector_step")

    def get_sub_environments(self) -> list[Any]:
        """The sub-envs, if there are such objects; here none."""
        return []

    def restart_at(self, index: int | None = None) -> None:
        """Close a sub-env that failed, and make another in its place; it is reset afterwards."""
        raise NotImplementedError(f"{type(self).__name__} has no restart_at")

    def close(self) -> None:
        """Close the sub-envs, each once however often it is listed."""
        for env in {id(env): env for env in self.get_sub_environments()}.values():
            env.close()
