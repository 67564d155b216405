"""What is told of a run: by the workers of a set of their episodes, by an update of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from swath.rollout_workers.rollout_metrics import RolloutMetrics
from swath.rollout_workers.summary import summarize_episodes

LEARNER_STATS = "learner_stats"


class Reachable(Protocol):
    """What is asked of a set of workers: its method of that name."""

    def foreach_worker(
        self, func: Any, *, local_worker: bool, worker_ids: Sequence[int] | None, timeout_seconds: float | None
    ) -> list[Any]:
        """One answer per worker."""


@runtime_checkable
class Configured(Protocol):
    """A set of workers that tells its settings."""

    @property
    def config(self) -> Any:
        """An `AlgorithmConfig`."""


def collect_metrics(
    worker_set: Reachable,
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
    keep = isinstance(worker_set, Configured) and worker_set.config.keep_per_episode_custom_metrics
    return summarize_episodes(episodes, episodes, keep_custom_metrics or keep)


def collect_episodes(
    worker_set: Reachable, remote_worker_ids: Sequence[int] | None = None, timeout_seconds: float | None = 180
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
