"""What is told of one episode that ended."""

from __future__ import annotations

from typing import Any, NamedTuple, Self


class _Fields(NamedTuple):
    episode_length: int
    episode_reward: float
    agent_rewards: dict[Any, float]
    custom_metrics: dict[str, Any]
    perf_stats: dict[str, float]
    hist_data: dict[str, list[Any]]
    media: dict[str, Any]
    episode_faulty: bool
    connector_metrics: dict[str, Any]
    episode_reward_raw: float
    env_index: int
    error: str


class RolloutMetrics(_Fields):
    """What is told of one episode; a named tuple, every field of which has a default.

    Attributes:
        episode_length: env steps.
        episode_reward: sum over its agents and steps, after reward clipping.
        agent_rewards: the same, by (agent, policy).
        custom_metrics: what callbacks noted in the episode.
        perf_stats: milliseconds per step, by what they were spent on.
        hist_data: lists of numbers that callbacks noted.
        media: whatever else callbacks noted.
        episode_faulty: env or reset raised: the episode did not end by itself.
        connector_metrics: by policy and pipeline, milliseconds.
        episode_reward_raw: the sum before reward clipping.
        env_index: of the env within its worker.
        error: what was raised, if the episode is faulty.
    """

    __slots__ = ()

    def __new__(  # noqa: PLR0917  the fields, in the order of the peer's
        cls,
        episode_length: int = 0,
        episode_reward: float = 0,
        agent_rewards: dict[Any, float] | None = None,
        custom_metrics: dict[str, Any] | None = None,
        perf_stats: dict[str, float] | None = None,
        hist_data: dict[str, list[Any]] | None = None,
        media: dict[str, Any] | None = None,
        episode_faulty: bool = False,
        connector_metrics: dict[str, Any] | None = None,
        episode_reward_raw: float = 0,
        env_index: int = 0,
        error: str = "",
    ) -> Self:
        """Dicts that are not given are new ones, which nobody else has."""
        return super().__new__(
            cls,
            episode_length,
            episode_reward,
            _own(agent_rewards),
            _own(custom_metrics),
            _own(perf_stats),
            _own(hist_data),
            _own(media),
            episode_faulty,
            _own(connector_metrics),
            episode_reward_raw,
            env_index,
            error,
        )


def _own(given: dict[Any, Any] | None) -> dict[Any, Any]:
    return {} if given is None else given
