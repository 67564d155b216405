"""The metrics of a run: of episodes by the workers of a set, and of updates."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from swath.errors import warn

Part = Literal["raw_obs_processing", "inference", "action_processing", "env_wait", "env_render"]
"""The parts of a step that are timed."""

EVERY = 64
"""The first of so many steps is timed."""

LEARNER_STATS = "learner_stats"
CAPACITY = 10_000

# Of a sampler: env steps and transitions that were handed out, env steps that never will be, episodes that ended by
# themselves, and episodes that an env ended by raising, or that could not begin.
COUNTERS = ("env_steps_sampled", "agent_steps_sampled", "env_steps_discarded", "episodes", "episodes_faulty")

KINDS: tuple[tuple[str, Any], ...] = (("min", np.min), ("mean", np.mean), ("max", np.max))

_EMPTY: dict[Any, Any] = {}
"""A default that is never changed."""


class RolloutMetrics(NamedTuple):
    """The metrics of one episode.

    Attributes:
        episode_length: env steps.
        episode_reward: sum over its agents and steps, after reward clipping.
        agent_rewards: the same, by (agent, policy).
        custom_metrics: by name, from callbacks.
        perf_stats: milliseconds per step, by part.
        hist_data: lists of numbers by name, from callbacks.
        media: any values by name, from callbacks.
        episode_faulty: step or reset raised: the episode did not end by itself.
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

    @classmethod
    def of(cls, episode: Any, perf_stats: dict[str, float]) -> RolloutMetrics:
        """Build the metrics of an `Episode` that ended by itself."""
        sums = {"episode_reward_raw": episode.raw_reward, "env_index": episode.env_id, "perf_stats": perf_stats}
        reported = {name: getattr(episode, name) for name in ("agent_rewards", "custom_metrics", "hist_data", "media")}
        return cls(episode.length, episode.total_reward, **sums, **reported)


class PerfStats:
    """A stopwatch for steps.

    `step` begins one, every 64th of which is timed: then `lap` counts what passed since the step or the last lap.

    Attributes:
        is_timing: whether the step is timed; otherwise `lap` must not be called.
    """

    def __init__(self) -> None:
        self._steps, self._lap_start, self.is_timing = 0, 0.0, False
        self._seconds = dict.fromkeys(get_args(Part), 0.0)

    def step(self) -> None:
        """Start a step; the first and every 64th are timed."""
        self.is_timing = self._steps % EVERY == 0
        self._steps += 1
        if self.is_timing:
            self._lap_start = time.perf_counter()

    def lap(self, part: Part) -> None:
        """Add the time since the last lap to this part; call it only in a step that is timed."""
        now = time.perf_counter()
        self._seconds[part] += now - self._lap_start
        self._lap_start = now

    def get(self) -> dict[str, float]:
        """Return mean milliseconds per step by part, `mean_…_ms`; 0 for a part that was never timed."""
        n_timed = (self._steps - 1) // EVERY + 1
        scale = 1e3 / max(1, n_timed)
        return {f"mean_{part}_ms": seconds * scale for part, seconds in self._seconds.items()}


class MetricsLog:
    """Keeps the latest metrics; older ones are dropped beyond its capacity, counted, and warned of once.

    Attributes:
        dropped: how many were dropped.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.dropped = 0
        self._kept: deque[RolloutMetrics] = deque(maxlen=capacity)

    def add(self, metrics: Iterable[RolloutMetrics]) -> None:
        """Add the metrics of episodes, in the order in which they ended."""
        for episode in metrics:
            if len(self._kept) == self._kept.maxlen:
                if not self.dropped:
                    n = len(self._kept)
                    warn(f"the metrics of {n} episodes wait; older ones are dropped: call get_metrics() more often")
                self.dropped += 1
            self._kept.append(episode)

    def drain(self) -> list[RolloutMetrics]:
        """Return all metrics and forget them."""
        episodes = list(self._kept)
        self._kept.clear()
        return episodes


def summarize_episodes(
    episodes: Sequence[RolloutMetrics],
    new_episodes: Sequence[RolloutMetrics] | None = None,
    keep_custom_metrics: bool = False,
) -> dict[str, Any]:
    """Summarise episodes; faulty ones count for `num_faulty_episodes` alone.

    Args:
        episodes: the most recent ones, for the statistics.
        new_episodes: the new ones, for `num_episodes`; by default all.
        keep_custom_metrics: give `custom_metrics` as lists, not as `_mean`, `_min` and `_max`.

    Returns:
        `episode_return_{min,mean,max}`, the same as `episode_reward_…`, and `episode_return_raw_…` before clipping, NaN
        if there is no episode; `policy_reward_…` by policy; `episode_len_mean`, `episodes_timesteps_total`,
        `num_episodes`, also as `episodes_this_iter`, `num_faulty_episodes`; `hist_stats`, `custom_metrics`,
        `episode_media`, `sampler_perf`.
    """
    complete = [episode for episode in episodes if not episode.episode_faulty]
    new = sum(not episode.episode_faulty for episode in (episodes if new_episodes is None else new_episodes))
    rewards = [episode.episode_reward for episode in complete]
    lengths = [episode.episode_length for episode in complete]
    by_policy = _group({policy: reward} for e in complete for (_, policy), reward in e.agent_rewards.items())
    hist_data = _group({name: value} for e in complete for name, values in e.hist_data.items() for value in values)
    custom = {
        name: [value for value in values if not np.any(np.isnan(value))]
        for name, values in _group(episode.custom_metrics for episode in complete).items()
    }
    custom_metrics = {key: value for name, values in custom.items() for key, value in _summarise(name, values).items()}
    return {
        **_summarise("episode_reward", rewards),
        **_summarise("episode_return", rewards),
        **_summarise("episode_return_raw", [episode.episode_reward_raw for episode in complete]),
        **{f"policy_reward_{k}": {pid: float(fn(values)) for pid, values in by_policy.items()} for k, fn in KINDS},
        "episode_len_mean": float(np.mean(lengths)) if lengths else float("nan"),
        "episodes_timesteps_total": sum(lengths),
        "num_episodes": new,
        "episodes_this_iter": new,
        "num_faulty_episodes": len(episodes) - len(complete),
        "hist_stats": {
            **hist_data,
            "episode_reward": rewards,
            "episode_lengths": lengths,
            **{f"policy_{policy}_reward": values for policy, values in by_policy.items()},
        },
        "custom_metrics": custom if keep_custom_metrics else custom_metrics,
        "episode_media": _group(episode.media for episode in complete),
        "sampler_perf": {
            name: float(np.mean(values)) for name, values in _group(episode.perf_stats for episode in complete).items()
        },
    }


def _group(parts: Iterable[Mapping[Any, Any]]) -> dict[Any, list[Any]]:
    """Collect the values of each name in lists."""
    lists: dict[Any, list[Any]] = {}
    for part in parts:
        for name, value in part.items():
            lists.setdefault(name, []).append(value)
    return lists


def _summarise(name: str, values: Sequence[Any]) -> dict[str, float]:
    """Return the lowest, mean and highest value; NaN if there is none."""
    return {f"{name}_{kind}": float(reduce(values)) if values else float("nan") for kind, reduce in KINDS}


def collect_metrics(
    worker_set: Any = None,
    remote_worker_ids: Sequence[int] | None = None,
    timeout_seconds: float | None = 180,
    keep_custom_metrics: bool = False,
    *,
    workers: Any = None,
) -> dict[str, Any]:
    """Summarise the episodes that ended since the last call; see `summarize_episodes`.

    Args:
        worker_set: the set, whose local worker is asked, too.
        remote_worker_ids: which remote workers; None for all, `[]` for none.
        timeout_seconds: for the answers.
        keep_custom_metrics: leave lists as they are; so does `keep_per_episode_custom_metrics` in the set's config.
        workers: another name of `worker_set`.
    """
    workers = worker_set if workers is None else workers
    episodes = collect_episodes(workers, remote_worker_ids, timeout_seconds)
    keep = keep_custom_metrics or workers.config.keep_per_episode_custom_metrics
    return summarize_episodes(episodes, keep_custom_metrics=keep)


def collect_episodes(
    worker_set: Any = None,
    remote_worker_ids: Sequence[int] | None = None,
    timeout_seconds: float | None = 180,
    *,
    workers: Any = None,
) -> list[RolloutMetrics]:
    """Return the episodes of workers since the last call; the workers forget them.

    Raises:
        Exception: what a worker raised; the episodes of the others are in its `results`.
    """
    workers = worker_set if workers is None else workers
    by_worker = workers.foreach_worker("get_metrics", worker_ids=remote_worker_ids, timeout_seconds=timeout_seconds)
    return [episode for episodes in by_worker for episode in episodes]


def get_learner_stats(info: Mapping[str, Any]) -> Any:
    """Return the `learner_stats` in the info of an update; by policy id, if it has several."""
    if LEARNER_STATS in info:
        return info[LEARNER_STATS]
    return {pid: part[LEARNER_STATS] for pid, part in info.items() if isinstance(part, dict) and LEARNER_STATS in part}
