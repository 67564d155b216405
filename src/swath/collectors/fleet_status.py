"""What a collector with many workers says of itself: `stats()` and `repr`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from swath.collect.background import Background
from swath.collectors.fleet_assembly import Assembled
from swath.collectors.status import error_text, short
from swath.errors import Closed
from swath.workers.fleet_state import Standing


def fleet_stats(assembled: Assembled, background: Background) -> tuple[dict[str, Any], dict[str, Any]]:
    """Numbers, bools and short strings: of all together, and by worker."""
    with suppress(Closed):  # nothing more happens to the workers then
        assembled.fleet.look()
        assembled.collection.desk.sweep()
    return _aggregate(assembled, background), _per_worker(assembled)


def fleet_status_line(assembled: Assembled, background: Background) -> str:
    """One line: who is up, how many frames, which version."""
    collection = assembled.collection
    frames = short(collection.counters.frames)
    n_workers = len(assembled.fleet.standings())
    who = f"{collection.name} {n_workers} worker{'s' if n_workers != 1 else ''}"
    state = _state(assembled, background)
    return f"<{who}: {state}; {frames} frames, version {collection.version}>"


def _state(assembled: Assembled, background: Background) -> str:
    if assembled.collection.gate.halted:
        return ", ".join(["closed", *_abandoned(assembled)])
    busy = _busy(assembled)
    said: dict[str, list[Standing]] = {}
    for worker, standing in assembled.fleet.standings().items():
        said.setdefault(_in_words(standing, busy=worker in busy), []).append(standing)
    most = assembled.fleet.survival.restarts.max_per_worker
    parts = [f"{len(those)} {state}{_which_life(state, those, most)}" for state, those in said.items()]
    parts += _abandoned(assembled)
    return ", ".join([*parts, "collecting in the background"] if background.running else parts)


def _busy(assembled: Assembled) -> set[int]:
    """Workers that have not answered what they were asked."""
    return {sent.worker for sent in list(assembled.collection.desk.out) if not sent.ticket.done}


def _which_life(state: str, those: list[Standing], most: int) -> str:
    return f" (life {those[0].restarts} of {most})" if state == "restarting" and len(those) == 1 else ""


def _abandoned(assembled: Assembled) -> list[str]:
    number = assembled.fleet.abandoned
    return [f"{number} abandoned, but busy"] if number else []


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
        "staleness": _staleness(assembled),
        "workers": len(fleet.standings()),
        "workers_alive": 0 if collection.gate.halted else len(fleet.up),
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
        "episodes": counters.episodes.finished,
        "fps": counters.fps,
        "seconds": counters.seconds,
        "seconds_waiting": counters.seconds_waiting,
        "running": background.running,
    }
    if desk.budget.total_frames is not None:
        facts |= {"total_frames": desk.budget.total_frames, "completed": collection.completed}
    if counters.episodes.mean_return is not None:
        facts |= {"episode_return": counters.episodes.mean_return, "episode_length": counters.episodes.mean_length}
    if background.error is not None:
        facts["error"] = error_text(background.error)
    return facts


def _per_worker(assembled: Assembled) -> dict[str, Any]:
    known, closed = assembled.collection.desk.known, assembled.collection.gate.halted
    busy = _busy(assembled)
    facts: dict[str, Any] = {}
    for worker, standing in assembled.fleet.standings().items():
        facts |= {
            f"worker_{worker}/frames": known.frames.get(worker, 0),
            f"worker_{worker}/life": max(standing.life, known.lives.get(worker, 0)),
            f"worker_{worker}/state": "closed" if closed else standing.words,
            f"worker_{worker}/busy": worker in busy,
            f"worker_{worker}/policy_version": known.versions.get(worker, 0),
            f"worker_{worker}/staleness": known.lags.get(worker, 0),
        }
    return facts


def _in_words(standing: Standing, *, busy: bool) -> str:
    if standing.phase == "up":
        return "busy" if busy else "idle"
    return standing.words


def _oldest(assembled: Assembled) -> int:
    """The oldest version that a worker runs, as far as its answers have said."""
    versions = assembled.collection.desk.known.versions
    return min((versions.get(worker, 0) for worker in _remaining(assembled)), default=0)


def _staleness(assembled: Assembled) -> int:
    """How many versions behind the last fragments of the workers were when they arrived, at most."""
    lags = assembled.collection.desk.known.lags
    return max((lags.get(worker, 0) for worker in _remaining(assembled)), default=0)


def _remaining(assembled: Assembled) -> list[int]:
    """Workers that were not given up."""
    return [worker for worker, standing in assembled.fleet.standings().items() if standing.phase != "gone"]
