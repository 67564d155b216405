"""`stats()` and `repr` of collectors, from what is known without asking anybody."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from swath.collectors.background import Background
from swath.collectors.service import CollectorService
from swath.errors import Closed
from swath.group.local import LocalFleet
from swath.workers.fleet_state import Standing

LONGEST_ERROR = 300


def facts_of(collection: CollectorService, background: Background) -> tuple[dict[str, Any], dict[str, Any]]:
    """Numbers, bools and short strings of a collector: of all workers together, and by worker."""
    fleet, tracker, counters = collection.group.fleet, collection.group, collection.counters
    here = fleet.member if isinstance(fleet, LocalFleet) else None
    if here is not None:
        known = tracker.workers[0]
        known.version, known.life, known.lag = here.version, here.life, collection.version - here.version
    else:
        with suppress(Closed):  # nothing more happens to the workers then
            fleet.look()
            collection.group.sweep()
    standings, tally, records, episodes = fleet.standings(), tracker.tally(), tracker.workers, counters.episodes
    there = [records[worker] for worker, standing in standings.items() if standing.phase != "gone"]
    facts: dict[str, Any] = {
        "frames": counters.frames,
        "batches": counters.batches,
        "requested_frames_per_batch": collection.batch_frames,
        "policy_version": collection.version,
        "policy_version_min": min((one.version for one in there), default=0),
        "staleness": max((one.lag for one in there), default=0),
        "restarts": fleet.restarts + tally.restarts,
        "workers_lost": len(standings) - len(there),
        "late": len(fleet.late),
        "fragments_lost": tracker.fragments_lost + tally.fragments_lost,
        "env_errors": tally.env_errors,
        "frames_dropped": counters.frames_dropped,
        "batches_dropped": counters.batches_dropped,
        "batches_overdue": counters.batches_overdue,
        "frames_discarded": counters.frames_discarded + tally.frames_discarded,
        "episodes": episodes.finished,
        "fps": counters.fps,
        "seconds": counters.seconds,
        "seconds_waiting": counters.seconds_waiting,
        "running": background.running,
    }
    if here is None:
        facts |= {
            "workers": len(standings),
            "workers_alive": 0 if collection.gate.halted else len(fleet.up),
            "worker_frames": sum(one.frames for one in records.values()),
        }
    if tracker.total is not None:
        facts |= {"total_frames": tracker.total, "completed": collection.completed}
    if episodes.means is not None:
        facts |= zip(("episode_return", "episode_length"), episodes.means, strict=True)
    if (error := background.error) is not None:
        facts["error"] = f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
    busy, per_worker = _busy(collection), dict[str, Any]()
    for worker, standing in standings.items():
        record, name = records[worker], f"worker_{worker if here is None else here.index}"
        per_worker[f"{name}/frames"] = record.frames
        per_worker[f"{name}/life"] = max(standing.life, record.life)
        per_worker[f"{name}/policy_version"] = record.version
        per_worker[f"{name}/staleness"] = record.lag
        per_worker[f"{name}/state"] = "closed" if collection.gate.halted else standing.words
        per_worker[f"{name}/busy"] = worker in busy
    return facts, per_worker


def status_line(name: str, collection: CollectorService, background: Background) -> str:
    """One line: who is up, how many frames, which version."""
    fleet, busy, said = collection.group.fleet, _busy(collection), dict[str, list[Standing]]()
    standings, late = fleet.standings(), len(fleet.left_behind)
    for worker, standing in standings.items():
        state = standing.words if standing.phase != "up" else "busy" if worker in busy else "idle"
        said.setdefault("closed" if collection.gate.halted else state, []).append(standing)
    parts = [state if state == "closed" else f"{len(those)} {state}" for state, those in said.items()]
    if len(said.get("restarting", ())) == 1:
        number, most = said["restarting"][0].restarts, collection.options.restarts.max_per_worker
        parts = [f"{part} (life {number} of {most})" if part == "1 restarting" else part for part in parts]
    parts += [f"{late} abandoned, but busy"] if late else []
    parts += ["collecting in the background"] if background.running else []
    frames, version = collection.counters.frames, collection.version
    size, unit = (1_000_000, "M") if frames >= 1_000_000 else (1_000, "k")
    short = f"{frames / size:.1f}{unit}" if frames >= size else frames
    workers = f"{len(standings)} worker{'' if len(standings) == 1 else 's'}"
    return f"<{name} {workers}: {', '.join(parts)}; {short} frames, version {version}>"


def _busy(collection: CollectorService) -> set[int]:
    """Workers that have not answered what they were asked."""
    return {request.worker for request in list(collection.group.out) if not request.ticket.done}
