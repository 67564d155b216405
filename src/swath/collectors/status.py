"""`stats()` and `repr` of collectors, from what is known without asking anybody."""

from __future__ import annotations

from typing import Any

from swath.collect.background import Background
from swath.collect.collection import Collection
from swath.collect.fleet_collection import FleetCollection
from swath.workers.fleet_state import Standing

LONGEST_ERROR = 300


def collector_facts(collection: Collection, background: Background) -> tuple[dict[str, Any], dict[str, Any]]:
    """Numbers, bools and short strings of a collector in this process, and of its only worker."""
    worker, name = collection.worker, f"worker_{collection.worker.place.worker}"
    tally, lag = worker.tally, collection.version - worker.version
    own = {
        "policy_version_min": worker.version,
        "staleness": lag,
        "restarts": tally.restarts,
        "workers_lost": 0,
        "late": 0,
        "fragments_lost": tally.fragments_lost,
        "env_errors": tally.env_errors,
    }
    per_worker = {
        f"{name}/frames": collection.counters.frames,
        f"{name}/life": worker.life,
        f"{name}/state": _state(collection, background),
        f"{name}/policy_version": worker.version,
        f"{name}/staleness": lag,
    }
    return _common(collection, background) | own, per_worker


def fleet_facts(collection: FleetCollection, background: Background) -> tuple[dict[str, Any], dict[str, Any]]:
    """Numbers, bools and short strings of a collector with many workers: of all together, and by worker."""
    fleet, books = collection.group.fleet, collection.books
    standings, tally, known = fleet.standings(), books.tally(), books.workers
    there = [worker for worker, standing in standings.items() if standing.phase != "gone"]
    common = _common(collection, background)
    own = {
        "policy_version_min": min((known[worker].version for worker in there), default=0),
        "staleness": max((known[worker].lag for worker in there), default=0),
        "workers": len(standings),
        "workers_alive": 0 if collection.gate.halted else len(fleet.up),
        "worker_frames": sum(one.frames for one in known.values()),
        "restarts": fleet.restarts + tally.restarts,
        "workers_lost": fleet.workers_lost,
        "late": fleet.late,
        "fragments_lost": books.fragments_lost + tally.fragments_lost,
        "env_errors": tally.env_errors,
        "frames_discarded": common["frames_discarded"] + tally.frames_discarded,
    }
    busy = _busy(collection)
    per_worker: dict[str, Any] = {}
    for worker, standing in standings.items():
        per_worker |= {
            f"worker_{worker}/frames": known[worker].frames,
            f"worker_{worker}/life": max(standing.life, known[worker].life),
            f"worker_{worker}/state": "closed" if collection.gate.halted else standing.words,
            f"worker_{worker}/busy": worker in busy,
            f"worker_{worker}/policy_version": known[worker].version,
            f"worker_{worker}/staleness": known[worker].lag,
        }
    return common | own, per_worker


def status_line(collection: Collection, background: Background) -> str:
    """One line: how many envs, frames and which version."""
    return _line(collection, collection.worker.host.spec.num_envs, "env", _state(collection, background))


def fleet_status_line(collection: FleetCollection, background: Background) -> str:
    """One line: who is up, how many frames, which version."""
    standings = collection.group.fleet.standings()
    if collection.gate.halted:
        return _line(collection, len(standings), "worker", ", ".join(["closed", *_abandoned(collection)]))
    busy, most = _busy(collection), collection.group.fleet.survival.restarts.max_per_worker
    said: dict[str, list[Standing]] = {}
    for worker, standing in standings.items():
        state = standing.words if standing.phase != "up" else "busy" if worker in busy else "idle"
        said.setdefault(state, []).append(standing)
    parts = []
    for state, those in said.items():
        life = f" (life {those[0].restarts} of {most})" if state == "restarting" and len(those) == 1 else ""
        parts.append(f"{len(those)} {state}{life}")
    parts += [*_abandoned(collection), *(["collecting in the background"] if background.running else [])]
    return _line(collection, len(standings), "worker", ", ".join(parts))


def _common(collection: Collection | FleetCollection, background: Background) -> dict[str, Any]:
    counters, episodes = collection.counters, collection.counters.episodes
    facts: dict[str, Any] = {
        "frames": counters.frames,
        "batches": counters.batches,
        "requested_frames_per_batch": collection.batch_frames,
        "policy_version": collection.version,
        "frames_dropped": counters.frames_dropped,
        "batches_dropped": counters.batches_dropped,
        "batches_overdue": counters.batches_overdue,
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
    if (error := background.error) is not None:
        facts["error"] = f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
    return facts


def _line(collection: Collection | FleetCollection, number: int, of: str, state: str) -> str:
    who = f"{collection.name} {number} {of}{'s' if number != 1 else ''}"
    return f"<{who}: {state}; {short(collection.counters.frames)} frames, version {collection.version}>"


def _state(collection: Collection, background: Background) -> str:
    if collection.gate.halted:
        return "closed"
    if background.running:
        return "collecting"
    return "done" if collection.completed else "ready"


def _busy(collection: FleetCollection) -> set[int]:
    """Workers that have not answered what they were asked."""
    return {request.worker for request in list(collection.group.out) if not request.ticket.done}


def _abandoned(collection: FleetCollection) -> list[str]:
    number = collection.group.fleet.abandoned
    return [f"{number} abandoned, but busy"] if number else []


def short(number: int) -> str:
    """A number of frames in few characters."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return str(number)
