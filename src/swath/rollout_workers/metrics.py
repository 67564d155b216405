"""What is reported of a run: by the workers of a set of their episodes, by an update of itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from swath.rollout_workers.rollout_metrics import RolloutMetrics

_NOTHING = float("nan")


def summarize_episodes(
    episodes: Sequence[RolloutMetrics],
    new_episodes: Sequence[RolloutMetrics] | None = None,
    keep_custom_metrics: bool = False,
) -> dict[str, Any]:
    """What episodes say together. Faulty ones are counted as such, and in nothing else.

    Args:
        episodes: the most recent ones, for the statistics.
        new_episodes: those that are new, for `num_episodes`; by default all.
        keep_custom_metrics: give `custom_metrics` as lists, not as `_mean`, `_min` and `_max`.

    Returns:
        `episode_return_{min,mean,max}`, the same as `episode_reward_…`, and `episode_return_raw_…` before clipping, NaN
        if there is no episode; `policy_reward_…` by policy; `episode_len_mean`, `episodes_timesteps_total`,
        `num_episodes`, also as `episodes_this_iter`, `num_faulty_episodes`; `hist_stats`, `custom_metrics`,
        `episode_media`, `sampler_perf`.
    """
    whole = [episode for episode in episodes if not episode.episode_faulty]
    new = sum(not episode.episode_faulty for episode in (episodes if new_episodes is None else new_episodes))
    rewards = [episode.episode_reward for episode in whole]
    lengths = [episode.episode_length for episode in whole]
    of_policies = _lists((policy, reward) for episode in whole for (_, policy), reward in episode.agent_rewards.items())
    return {
        **_spread("episode_reward", rewards),
        **_spread("episode_return", rewards),
        **_spread("episode_return_raw", [episode.episode_reward_raw for episode in whole]),
        **_spread_by_policy(of_policies),
        "episode_len_mean": _mean(lengths),
        "episodes_timesteps_total": sum(lengths),
        "num_episodes": new,
        "episodes_this_iter": new,
        "num_faulty_episodes": len(episodes) - len(whole),
        "hist_stats": _histograms(whole, rewards, lengths, of_policies),
        "custom_metrics": _custom(
            _lists(_items(episode.custom_metrics for episode in whole)), keep=keep_custom_metrics
        ),
        "episode_media": _lists(_items(episode.media for episode in whole)),
        "sampler_perf": _means(_lists(_items(episode.perf_stats for episode in whole))),
    }


def _items(parts: Iterable[Mapping[Any, Any]]) -> Iterable[tuple[Any, Any]]:
    return (item for part in parts for item in part.items())


def _lists(items: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    """The values of each name."""
    lists: dict[Any, list[Any]] = {}
    for name, value in items:
        lists.setdefault(name, []).append(value)
    return lists


def _mean(values: Sequence[Any]) -> float:
    return float(np.mean(values)) if values else _NOTHING


def _means(lists: Mapping[str, Sequence[Any]]) -> dict[str, float]:
    return {name: _mean(values) for name, values in lists.items()}


def _lowest_mean_highest(values: Sequence[Any]) -> dict[str, float]:
    if not values:
        return dict.fromkeys(("min", "mean", "max"), _NOTHING)
    return {"min": float(np.min(values)), "mean": _mean(values), "max": float(np.max(values))}


def _spread(name: str, values: Sequence[Any]) -> dict[str, float]:
    return {f"{name}_{kind}": value for kind, value in _lowest_mean_highest(values).items()}


def _spread_by_policy(rewards: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    spreads = {policy: _lowest_mean_highest(values) for policy, values in rewards.items()}
    return {
        f"policy_reward_{kind}": {policy: spread[kind] for policy, spread in spreads.items()}
        for kind in ("min", "mean", "max")
    }


def _histograms(
    episodes: Sequence[RolloutMetrics],
    rewards: list[float],
    lengths: list[int],
    of_policies: Mapping[str, list[float]],
) -> dict[str, list[Any]]:
    noted = _lists((name, value) for name, values in _items(e.hist_data for e in episodes) for value in values)
    by_policy = {f"policy_{policy}_reward": values for policy, values in of_policies.items()}
    return {**noted, "episode_reward": rewards, "episode_lengths": lengths, **by_policy}


def _custom(lists: Mapping[str, Sequence[Any]], *, keep: bool) -> dict[str, Any]:
    known = {name: [value for value in values if not np.any(np.isnan(value))] for name, values in lists.items()}
    if keep:
        return known
    return {
        f"{name}_{kind}": value
        for name, values in known.items()
        for kind, value in _lowest_mean_highest(values).items()
    }  # fmt: skip


LEARNER_STATS = "learner_stats"


def collect_metrics(
    worker_set: Any,
    remote_worker_ids: Sequence[int] | None = None,
    timeout_seconds: float | None = 180,
    keep_custom_metrics: bool = False,
) -> dict[str, Any]:
    """What the episodes that ended since the last call say together; see `summarize_episodes`.

    Args:
        worker_set: whose local worker is asked, too.
        remote_worker_ids: which remote workers; None for all, `[]` for none.
        timeout_seconds: for the answers.
        keep_custom_metrics: leave lists as they are; so does `keep_per_episode_custom_metrics` in the set's config.
    """
    episodes = collect_episodes(worker_set, remote_worker_ids, timeout_seconds)
    keep = getattr(getattr(worker_set, "config", None), "keep_per_episode_custom_metrics", False)
    return summarize_episodes(episodes, episodes, keep_custom_metrics or keep)


def collect_episodes(
    worker_set: Any, remote_worker_ids: Sequence[int] | None = None, timeout_seconds: float | None = 180
) -> list[RolloutMetrics]:
    """What workers have to tell of episodes since they were last asked, which they forget."""
    told = worker_set.foreach_worker(
        _drain, local_worker=True, worker_ids=remote_worker_ids, timeout_seconds=timeout_seconds
    )
    return [episode for episodes in told for episode in episodes]


def get_learner_stats(info: Mapping[str, Any]) -> Any:
    """The `learner_stats` in what an update tells; by policy id, if it tells of several."""
    if LEARNER_STATS in info:
        return info[LEARNER_STATS]
    return {
        name: part[LEARNER_STATS] for name, part in info.items() if isinstance(part, dict) and LEARNER_STATS in part
    }


def _drain(worker: Any) -> Any:
    return worker.get_metrics()
