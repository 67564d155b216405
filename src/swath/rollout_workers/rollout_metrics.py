"""What is reported of one episode that ended."""

from __future__ import annotations

from typing import Any, NamedTuple

_EMPTY: dict[Any, Any] = {}
"""Nobody writes to it."""


class RolloutMetrics(NamedTuple):
    """What is reported of one episode.

    Attributes:
        episode_length: env steps.
        episode_reward: sum over its agents and steps, after reward clipping.
        agent_rewards: the same, by (agent, policy).
        custom_metrics: what callbacks noted in the episode.
        perf_stats: milliseconds per step, by what they were spent on.
        hist_data: lists of numbers that callbacks noted.
        media: whatever else callbacks noted.
        episode_faulty: env or reset raised: the episode did not end by itself.
        episode_reward_raw: the sum before reward clipping.
        env_index: of the env within its worker.
        error: what was raised, if the episode is faulty.
    """

    episode_length: int = 0
    episode_reward: float = 0
    agent_rewards: dict[Any, float] = _EMPTY
    custom_metrics: dict[str, Any] = _EMPTY
    perf_stats: dict[str, float] = _EMPTY
    hist_data: dict[str, list[Any]] = _EMPTY
    media: dict[str, Any] = _EMPTY
    episode_faulty: bool = False
    episode_reward_raw: float = 0
    env_index: int = 0
    error: str = ""
