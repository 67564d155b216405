"""Who is called with episodes while they run, and what is reported of them.

created (before the reset) ─▶ started (before its first action) ─▶ stepped … ─▶ ended, or failed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from swath.errors import warn
from swath.rollout.hosts.base import EnvRaised
from swath.rollout_workers.callbacks import listeners
from swath.rollout_workers.episode import Episode
from swath.rollout_workers.metrics import RolloutMetrics

WATCHED = ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end")

LONG = 5_000


class EpisodeCallbacks:
    """Calls those of the user's callbacks that take episodes.

    Args:
        worker: in which they run.
        sub_env: an env by its number; None where there is no such object.
        base_env: the view of all.
    """

    def __init__(self, worker: Any, sub_env: Callable[[int], Any], base_env: Any, policies: Any) -> None:
        self._worker, self._sub_env, self._base_env, self._policies = worker, sub_env, base_env, policies
        self._listening = {event: listeners(worker.callbacks, event) for event in WATCHED}

    def listens(self, event: str) -> bool:
        """Whether anybody listens to an event."""
        return bool(self._listening[event])

    def __call__(self, event: str, envs: Sequence[int], episodes: Any) -> None:
        """Call who listens to an event, with the episode of each env, by env, or with what was raised in its place."""
        listening = self._listening[event]
        if not listening:
            return
        for env in envs:
            for listener in listening:
                listener(
                    episode=episodes[env],
                    worker=self._worker,
                    env_runner=self._worker,
                    base_env=self._base_env,
                    env=self._sub_env(env),
                    policies=self._policies,
                    env_index=env,
                )


def metrics_of(episode: Episode, perf_stats: dict[str, float]) -> RolloutMetrics:
    """What is reported of an episode that ended by itself."""
    return RolloutMetrics(
        episode.length,
        episode.total_reward,
        episode.agent_rewards,
        episode.custom_metrics,
        perf_stats,
        episode.hist_data,
        episode.media,
        episode_reward_raw=episode.raw_reward,
        env_index=episode.env_id,
    )


class LongEpisodes:
    """Warns, once per sub-env, of episodes that are waited for in vain; `batch_mode="complete_episodes"` waits."""

    def __init__(self) -> None:
        self._warned: set[int] = set()

    def note(self, lengths: Any, wanted: int) -> None:
        """The running episodes have so many steps, where batches of `wanted` steps per sub-env are asked."""
        most = max(LONG, 10 * wanted)
        for env in (lengths > most).nonzero()[0].tolist() if lengths.max() > most else ():
            if env not in self._warned:
                self._warned.add(env)
                warn(
                    f"the episode of sub-env {env} has lasted {lengths[env]:,} steps, and none of them is handed out "
                    "before it ends; limit episodes (gymnasium's TimeLimit), or set batch_mode='truncate_episodes'"
                )


def noted(raised: EnvRaised, seed: int | None, step: int | None) -> Exception:
    """What a sub-env raised, with a note of where: at a step of its episode, or at a reset."""
    where = "a reset" if step is None else f"step {step} of its episode, counted from 0"
    raised.cause.add_note(f"raised by sub-env {raised.env} (last seed {seed}) in {where}")
    return raised.cause
