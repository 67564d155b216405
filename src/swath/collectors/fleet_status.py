"""What a collector with many workers says of itself: `stats()` and `repr`."""

from __future__ import annotations

from typing import Any

from swath.collect.background import Background
from swath.collectors.fleet_assembly import Assembled
from swath.collectors.status import error_text, short


def fleet_stats(assembled: Assembled, background: Background) -> tuple[dict[str, Any], dict[str, Any]]:
    """Numbers, bools and short strings: of all together, and by worker."""
    return _aggregate(assembled, background), _per_worker(assembled)


def fleet_status_line(assembled: Assembled, background: Background) -> str:
    """One line: who is up, how many frames, which version."""
    collection = assembled.collection
    frames = short(collection.counters.frames)
    n_workers = len(assembled.described)
    who = f"{collection.name} {n_workers} worker{'s' if n_workers != 1 else ''}"
    state = _state(assembled, background)
    return f"<{who}: {state}; {frames} frames, version {collection.version}>"


def _state(assembled: Assembled, background: Background) -> str:
    if assembled.collection.gate.halted:
        return "closed"
    states = [assembled.fleet.state_of(worker) for worker in sorted(assembled.described)]
    busy = {sent.worker for sent in list(assembled.collection.desk.out) if not sent.ticket.done}
    counts: dict[str, int] = {}
    for worker, state in zip(sorted(assembled.described), states, strict=True):
        said = ("busy" if worker in busy else "idle") if state == "up" else state
        counts[said] = counts.get(said, 0) + 1
    said = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{said}, collecting in the background" if background.running else said


def _aggregate(assembled: Assembled, background: Background) -> dict[str, Any]:
    collection, fleet = assembled.collection, assembled.fleet
    counters, desk = collection.counters, collection.desk
    known, tally = desk.known, desk.known.tallies.total()
    facts: dict[str, Any] = {
        "frames": counters.frames,
        "batches": counters.batches,
        "requested_frames_per_batch": collection.batch_frames,
        "policy_version": collection.version,
        "policy_version_min": _oldest(assembled),
        "workers": len(assembled.described),
        "workers_alive": len(fleet.up),
        "worker_frames": sum(known.frames.values()),
        "restarts": fleet.restarts + tally.restarts,
        "workers_lost": fleet.workers_lost,
        "late": fleet.late,
        "fragments_lost": known.fragments_lost + tally.fragments_lost,
        "env_errors": tally.env_errors,
        "frames_dropped": counters.frames_dropped,
        "batches_dropped": counters.batches_dropped,
        "batches_overdue": counters.batches_overdue,
        "frames_discarded": counters.frames_discarded + tally.frames_discarded,
        "episodes": known.episodes.finished,
        "fps": counters.fps,
        "seconds_waiting": counters.seconds_waiting,
        "running": background.running,
    }
    if desk.budget.total_frames is not None:
        facts |= {"total_frames": desk.budget.total_frames, "completed": collection.completed}
    if known.episodes.mean_return is not None:
        facts |= {"episode_return": known.episodes.mean_return, "episode_length": known.episodes.mean_length}
    if background.error is not None:
        facts["error"] = error_text(background.error)
    return facts


def _per_worker(assembled: Assembled) -> dict[str, Any]:
    known, fleet = assembled.collection.desk.known, assembled.fleet
    facts: dict[str, Any] = {}
    for worker in sorted(assembled.described):
        facts |= {
            f"worker_{worker}/frames": known.frames.get(worker, 0),
            f"worker_{worker}/life": fleet.name(worker).life,
            f"worker_{worker}/state": fleet.state_of(worker),
            f"worker_{worker}/policy_version": known.versions.get(worker, 0),
        }
    return facts


def _oldest(assembled: Assembled) -> int:
    """The oldest version that a worker runs, as far as its fragments have said."""
    versions = assembled.collection.desk.known.versions
    return min((versions.get(worker, 0) for worker in assembled.described), default=0)
