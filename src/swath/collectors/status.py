"""`stats()` and `repr` of collectors, from what is known without asking anybody."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from swath.collectors.background import Background
from swath.collectors.service import CollectorService
from swath.errors import Closed
from swath.group.local import LocalFleet
from swath.workers.fleet_state import FIRST, Standing

OF_MANY = ("workers", "workers_alive", "worker_frames")
"""Facts that one worker in this process does not have."""

LONGEST_ERROR = 300


def facts_of(collection: CollectorService, background: Background) -> tuple[dict[str, Any], dict[str, Any]]:
    """Numbers, bools and short strings of a collector: of all workers together, and by worker."""
    fleet, tracker = collection.group.fleet, collection.fragments
    if isinstance(fleet, LocalFleet):
        worker, known = fleet.member, tracker.workers[0]
        tracker.note(FIRST, replace(worker.tally))
        known.version, known.life, known.lag = worker.version, worker.life, collection.version - worker.version
    else:
        with suppress(Closed):  # nothing more happens to the workers then
            fleet.look()
            collection.group.sweep()
    standings, tally, records = fleet.standings(), tracker.tally(), tracker.workers
    there = [worker for worker, standing in standings.items() if standing.phase != "gone"]
    common = _common(collection, background)
    own = {
        "policy_version_min": min((records[worker].version for worker in there), default=0),
        "staleness": max((records[worker].lag for worker in there), default=0),
        "workers": len(standings),
        "workers_alive": 0 if collection.gate.halted else len(fleet.up),
        "worker_frames": sum(one.frames for one in records.values()),
        "restarts": fleet.restarts + tally.restarts,
        "workers_lost": len(standings) - len(there),
        "late": len(fleet.late),
        "fragments_lost": tracker.fragments_lost + tally.fragments_lost,
        "env_errors": tally.env_errors,
        "frames_discarded": common["frames_discarded"] + tally.frames_discarded,
    }
    busy = _busy(collection)
    per_worker: dict[str, Any] = {}
    for worker, standing in standings.items():
        per_worker |= {
            f"worker_{worker}/frames": records[worker].frames,
            f"worker_{worker}/life": max(standing.life, records[worker].life),
            f"worker_{worker}/state": "closed" if collection.gate.halted else standing.words,
            f"worker_{worker}/busy": worker in busy,
            f"worker_{worker}/policy_version": records[worker].version,
            f"worker_{worker}/staleness": records[worker].lag,
        }
    if isinstance(fleet, LocalFleet):
        own = {name: fact for name, fact in own.items() if name not in OF_MANY}
        per_worker["worker_0/state"] = local_state(collection, background)
        del per_worker["worker_0/busy"]
        per_worker = {name.replace("0", str(fleet.member.index), 1): fact for name, fact in per_worker.items()}
    return common | own, per_worker


def status_line(collection: CollectorService, background: Background) -> str:
    """One line: who is up, how many frames, which version."""
    fleet = collection.group.fleet
    if isinstance(fleet, LocalFleet):
        return _line(collection, fleet.member.host.spec.num_envs, "env", local_state(collection, background))
    standings = fleet.standings()
    if collection.gate.halted:
        return _line(collection, len(standings), "worker", ", ".join(["closed", *_abandoned(collection)]))
    busy, most = _busy(collection), fleet.survival.restarts.max_per_worker
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


def _common(collection: CollectorService, background: Background) -> dict[str, Any]:
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
    if collection.fragments.total is not None:
        facts |= {"total_frames": collection.fragments.total, "completed": collection.completed}
    if episodes.mean_return is not None:
        facts |= {"episode_return": episodes.mean_return, "episode_length": episodes.mean_length}
    if (error := background.error) is not None:
        facts["error"] = f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
    return facts


def _line(collection: CollectorService, number: int, of: str, state: str) -> str:
    who = f"{collection.gate.name} {number} {of}{'s' if number != 1 else ''}"
    return f"<{who}: {state}; {short(collection.counters.frames)} frames, version {collection.version}>"


def local_state(collection: CollectorService, background: Background) -> str:
    """What the one worker of this process does."""
    if collection.gate.halted:
        return "closed"
    if background.running:
        return "collecting"
    return "done" if collection.completed else "ready"


def _busy(collection: CollectorService) -> set[int]:
    """Workers that have not answered what they were asked."""
    return {request.worker for request in list(collection.group.out) if not request.ticket.done}


def _abandoned(collection: CollectorService) -> list[str]:
    number = len(collection.group.fleet.left_behind)
    return [f"{number} abandoned, but busy"] if number else []


def short(number: int) -> str:
    """A number of frames in few characters."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return str(number)
