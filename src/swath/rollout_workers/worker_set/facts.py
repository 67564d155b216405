"""What a set of workers says of itself, under the names of collectors. Asks nobody, never waits."""

from __future__ import annotations

from collections import Counter
from typing import Any

from swath.collect.counters import EpisodeLog
from swath.rollout_workers.worker_set.books import Books
from swath.rollout_workers.worker_set.crew import Crew


def facts_of_crew(crew: Crew, books: Books, *, stopped: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of remote workers: of all together, and by worker."""
    standings = crew.fleet.standings().items()
    there = {worker: standing for worker, standing in standings if worker not in crew.removed}
    left = [worker for worker, standing in there.items() if standing.phase != "gone"]
    facts = {
        **_of_time(books, books.counters.frames),
        **_of_episodes(books.episodes),
        "batches": books.counters.batches,
        "policy_version": crew.channel.version,
        "policy_version_min": min(crew.known_versions().values(), default=0),
        "staleness": max((books.lags.get(worker, 0) for worker in left), default=0),
        "workers": len(there),
        "workers_alive": 0 if stopped else len(crew.up()),
        "worker_frames": sum(books.frames.values()),
        "restarts": crew.fleet.restarts,
        "workers_lost": len(there) - len(left),
        "late": crew.fleet.late,
        "fragments_lost": books.fragments_lost,
        "env_errors": books.env_errors,
    }
    of_workers: dict[str, Any] = {}
    for worker, standing in there.items():
        of_workers |= {
            f"worker_{worker}/frames": books.frames.get(worker, 0),
            f"worker_{worker}/life": standing.life,
            f"worker_{worker}/state": "closed" if stopped else standing.words,
            f"worker_{worker}/policy_version": books.versions.get(worker, 0),
            f"worker_{worker}/staleness": books.lags.get(worker, 0),
        }
    return facts, of_workers


def facts_of_local(worker: Any, books: Books, *, stopped: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of a set without remote workers: of its local one, if it has that, whoever made it sample."""
    done = Counter[str]() if worker is None else worker.counters
    version = 0 if worker is None else worker.policy_version
    episodes = EpisodeLog()
    episodes.book(() if worker is None else worker.recent_episodes)
    episodes.finished = done["episodes"]
    facts = {
        **_of_time(books, done["env_steps_sampled"]),
        **_of_episodes(episodes),
        "policy_version": version,
        "policy_version_min": version,
        "staleness": 0,
        "env_errors": done["episodes_faulty"],
    }
    of_worker = {
        "worker_0/frames": done["env_steps_sampled"],
        "worker_0/life": 0,
        "worker_0/state": "closed" if stopped else "ready",
        "worker_0/policy_version": version,
        "worker_0/staleness": 0,
    }
    return facts, {} if worker is None else of_worker


def _of_time(books: Books, frames: int) -> dict[str, Any]:
    seconds = books.counters.seconds
    fps = frames / seconds if seconds else 0.0
    return {"frames": frames, "fps": fps, "seconds": seconds, "seconds_waiting": books.counters.seconds_waiting}


def _of_episodes(episodes: EpisodeLog) -> dict[str, Any]:
    if episodes.mean_return is None:
        return {"episodes": episodes.finished}
    means = {"episode_return": episodes.mean_return, "episode_length": episodes.mean_length}
    return {"episodes": episodes.finished, **means}
