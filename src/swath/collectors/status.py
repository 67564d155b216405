"""What a collector says of itself: `stats()` and `repr`."""

from __future__ import annotations

from typing import Any

from swath.collect.background import Background
from swath.collect.collection import Collection
from swath.collect.views import viewed

LONGEST_ERROR = 300


def collector_stats(collection: Collection, background: Background, workers: str) -> dict[str, Any]:
    """Numbers, bools and short strings, from what is known without asking anybody.

    Raises:
        ValueError: an unknown view.
    """
    return viewed(workers, _aggregate(collection, background), _per_worker(collection, background))


def error_text(error: BaseException) -> str:
    """An exception as a short string."""
    return f"{type(error).__name__}: {error}"[:LONGEST_ERROR]


def status_line(collection: Collection, background: Background) -> str:
    """One line: how many envs, frames and which version."""
    state = _state(collection, background)
    frames = short(collection.counters.frames)
    envs = collection.worker.host.spec.num_envs
    who = f"{collection.name} {envs} env{'s' if envs != 1 else ''}"
    return f"<{who}: {state}; {frames} frames, version {collection.version}>"


def _state(collection: Collection, background: Background) -> str:
    if collection.gate.halted:
        return "closed"
    if background.running:
        return "collecting"
    return "done" if collection.completed else "ready"


def _aggregate(collection: Collection, background: Background) -> dict[str, Any]:
    counters, tally, episodes = collection.counters, collection.worker.tally, collection.counters.episodes
    facts: dict[str, Any] = {
        "frames": counters.frames,
        "batches": counters.batches,
        "requested_frames_per_batch": collection.batch_frames,
        "policy_version": collection.version,
        "policy_version_min": collection.worker.version,
        "staleness": collection.version - collection.worker.version,
        "restarts": tally.restarts,
        "workers_lost": 0,
        "late": 0,
        "fragments_lost": tally.fragments_lost,
        "env_errors": tally.env_errors,
        "frames_dropped": 0,
        "batches_dropped": 0,
        "batches_overdue": 0,
        "frames_discarded": counters.frames_discarded,
        "episodes": episodes.finished,
        "fps": counters.fps,
        "seconds": counters.seconds,
        "seconds_waiting": counters.seconds_waiting,
        "running": background.running,
    }
    if collection.budget.total_frames is not None:
        facts |= {"total_frames": collection.budget.total_frames, "completed": collection.completed}
    if episodes.mean_return is not None:
        facts |= {"episode_return": episodes.mean_return, "episode_length": episodes.mean_length}
    if background.error is not None:
        facts["error"] = error_text(background.error)
    return facts


def _per_worker(collection: Collection, background: Background) -> dict[str, Any]:
    worker, name = collection.worker, f"worker_{collection.worker.place.worker}"
    return {
        f"{name}/frames": collection.counters.frames,
        f"{name}/life": worker.life,
        f"{name}/state": _state(collection, background),
        f"{name}/policy_version": worker.version,
        f"{name}/staleness": collection.version - worker.version,
    }


def short(number: int) -> str:
    """A number of frames in few characters."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return str(number)
