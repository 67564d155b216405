"""Vector envs: one made of sub-envs, one that only pretends to have several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from swath.rollout_workers.vector_env import VectorEnv
from swath.testing.envs.mock import MockEnv


def _columns(rows: Sequence[tuple[Any, ...]]) -> Any:
    return tuple(map(list, zip(*rows, strict=True)))


class VectorizedMockEnv(VectorEnv):
    """Several `MockEnv`.

    Args:
        episode_length: of each.
        num_envs: how many.
    """

    def __init__(self, episode_length: int, num_envs: int) -> None:
        super().__init__(gym.spaces.Discrete(1), gym.spaces.Discrete(2), num_envs)
        self.episode_length = episode_length
        self.envs = [MockEnv(episode_length) for _ in range(num_envs)]

    def vector_reset(
        self, *, seeds: Sequence[int | None] | None = None, options: Sequence[dict[str, Any] | None] | None = None
    ) -> tuple[list[Any], list[dict[str, Any]]]:
        """Reset all."""
        nothing: list[None] = [None] * self.num_envs
        each = zip(self.envs, seeds or nothing, options or nothing, strict=True)
        obs, infos = _columns([env.reset(seed=seed, options=option) for env, seed, option in each])
        return obs, infos

    def reset_at(
        self, index: int | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset one."""
        return self.envs[index or 0].reset(seed=seed, options=options)

    def vector_step(
        self, actions: Sequence[Any]
    ) -> tuple[list[Any], list[float], list[bool], list[bool], list[dict[str, Any]]]:
        """Step all."""
        obs, rewards, terminateds, truncateds, infos = _columns(
            [env.step(action) for env, action in zip(self.envs, actions, strict=True)]
        )
        return obs, rewards, terminateds, truncateds, infos

    def get_sub_environments(self) -> list[Any]:
        """Those."""
        return list(self.envs)

    def restart_at(self, index: int | None = None) -> None:
        """Make one anew."""
        self.envs[index or 0] = MockEnv(self.episode_length)


class MockVectorEnv(VectorEnv):
    """A CartPole that pretends to be several: each of them acts in it, one after another.

    Args:
        episode_length: steps after which it truncates.
        mocked_num_envs: how many it pretends to be.
    """

    def __init__(self, episode_length: int, mocked_num_envs: int) -> None:
        self.env = gym.make("CartPole-v1")
        super().__init__(self.env.observation_space, self.env.action_space, mocked_num_envs)
        self.episode_len = episode_length
        self.ts = 0

    def vector_reset(
        self, *, seeds: Sequence[int | None] | None = None, options: Sequence[dict[str, Any] | None] | None = None
    ) -> tuple[list[Any], list[dict[str, Any]]]:
        """Reset the one, with the first seed and options."""
        obs, info = self.reset_at(0, seed=(seeds or [None])[0], options=(options or [None])[0])
        return [obs] * self.num_envs, [info] * self.num_envs

    def reset_at(
        self,
        index: int | None = None,  # noqa: ARG002  all are the one
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the one."""
        self.ts = 0
        return self.env.reset(seed=seed, options=options)

    def vector_step(
        self, actions: Sequence[Any]
    ) -> tuple[list[Any], list[float], list[bool], list[bool], list[dict[str, Any]]]:
        """Take the actions in turn; from the one that ends the episode on all see the end."""
        self.ts += 1
        rows: list[tuple[Any, ...]] = []
        for action in actions:
            ended = bool(rows) and (rows[-1][2] or rows[-1][3])
            rows.append(rows[-1] if ended else self._act(action))
        obs, rewards, terminateds, truncateds, infos = _columns(rows)
        return obs, rewards, terminateds, truncateds, infos

    def _act(self, action: Any) -> tuple[Any, ...]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated or self.ts >= self.episode_len, info

    def get_sub_environments(self) -> list[Any]:
        """The one, as often as it pretends."""
        return [self.env] * self.num_envs
