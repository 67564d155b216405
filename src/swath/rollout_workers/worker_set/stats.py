"""What a set of workers says of itself, under the names of collectors. Asks nobody, never waits."""

from __future__ import annotations

from typing import Any

from swath.collect.counters import Counters
from swath.rollout_workers.worker_set.crew import Crew


def facts_of(counters: Counters, version: int) -> dict[str, Any]:
    """Of what `sample` has handed out, with the newest version of the weights."""
    return {
        "frames": counters.frames,
        "batches": counters.batches,
        "fps": counters.fps,
        "seconds": counters.seconds,
        "seconds_waiting": counters.seconds_waiting,
        "policy_version": version,
    }


def facts_of_workers(crew: Crew, *, stopped: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the remote workers: of all together, and by worker."""
    standings = {worker: each for worker, each in crew.fleet.standings().items() if worker not in crew.removed}
    versions, newest = crew.known_versions(), crew.channel.version
    oldest = min(versions.values(), default=0)
    facts = {
        "policy_version_min": oldest,
        "staleness": max(0, newest - oldest),
        "workers": len(standings),
        "workers_alive": 0 if stopped else len(crew.up()),
        "restarts": crew.fleet.restarts,
        "workers_lost": sum(standing.phase == "gone" for standing in standings.values()),
        "late": crew.fleet.late,
        "fragments_lost": crew.fragments_lost,
    }
    of_workers: dict[str, Any] = {}
    for worker, standing in standings.items():
        version = versions.get(worker, 0)
        of_workers |= {
            f"worker_{worker}/frames": crew.frames[worker],
            f"worker_{worker}/life": standing.life,
            f"worker_{worker}/state": "closed" if stopped else standing.words,
            f"worker_{worker}/policy_version": version,
            f"worker_{worker}/staleness": max(0, newest - version),
        }
    return facts, of_workers
