"""What a collector says of itself: `stats()` and `repr` without asking anybody; what it saves, and goes on from."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from swath.collectors.background import Background
from swath.collectors.messages import unfrozen
from swath.collectors.remote import LIFE, TRAJ_POOL, WEIGHTS, last_life_of, require_parts
from swath.collectors.service import CollectorService
from swath.errors import Closed
from swath.rollout.hosts.sources import claim, require_unused
from swath.weights.snapshot import POLICY, take

LONGEST_ERROR = 300
OWN = ("frames", "iter", "traj_pool", "policy_version", "seed")


def saved_fleet(collection: CollectorService) -> tuple[dict[int, OrderedDict[str, Any]], dict[str, Any]]:
    """What every worker saves, by worker, and the counters of all."""
    answers = collection.open_group.call("state_dict")
    known = collection.group.workers
    saved = {}
    for worker in sorted(collection.jobs.described):
        saved[worker] = answers[worker] if worker in answers else stand_in_for(collection, worker)
        saved[worker] |= {"frames": known[worker].frames, "iter": known[worker].fragments - 1}
    seeding = collection.jobs.seeding
    return saved, {
        "frames": collection.counters.frames,
        "iter": collection.counters.batches - 1,
        TRAJ_POOL: {"traj_id": max(part[TRAJ_POOL]["traj_id"] for part in saved.values())},
        "policy_version": collection.version,
        "seed": None if seeding is None else seeding.root,
    }


def load_fleet(
    collection: CollectorService, parts: Mapping[int, Mapping[str, Any]], saved: Mapping[str, Any], *, strict: bool
) -> None:
    """Restore workers and counters; nothing has changed if something does not fit.

    Raises:
        ValueError: the run had ended, and another collector or evaluator steps the env.
    """
    jobs, env = collection.jobs, collection.jobs.requests[0].source.env
    if collection.options.here:  # it may have let go of the env at the end of its run
        require_unused(env, collection)
        claim(env, collection)
    counters, known = collection.counters, collection.group.workers
    manifests = {worker: description.manifest for worker, description in jobs.described.items()}
    for worker, part in parts.items():
        require_parts(part, has_weights=not manifests[worker].empty, strict=strict)
    weights = {worker: take(part[WEIGHTS], manifests[worker]) for worker, part in parts.items() if WEIGHTS in part}
    version = int(saved.get("policy_version", collection.version))
    with collection.forgetting() as calls:
        by_channel = {} if collection.options.here else weights
        models: dict[int | None, dict[str, Any]] = {
            worker: {POLICY: by_channel[worker]} if worker in by_channel else {} for worker in parts
        }
        collection.group.channel.publish_each(models, version)
        counters.restore(int(saved.get("frames", counters.frames)), int(saved.get("iter", counters.batches - 1)) + 1)
        collection.begin_randomly()
        if "seed" in saved:
            jobs.seeding = None
            if saved["seed"] is not None:
                jobs.seed_with(saved["seed"])
        for worker, part in parts.items():
            known[worker].frames = int(part.get("frames", known[worker].frames))
            known[worker].fragments = int(part.get("iter", known[worker].fragments - 1)) + 1
            known[worker].life = max(known[worker].life, last_life_of(part)) + 1
            rest = {name: value for name, value in part.items() if name != WEIGHTS or collection.options.here}
            rest["policy_version"] = version
            calls[worker] = "restore", rest, jobs.seeding


def stand_in_for(collection: CollectorService, worker: int) -> OrderedDict[str, Any]:
    """The newest weights meant for it and its seed; no transforms.

    Of a policy that a factory builds, and of which nothing was published, there are no weights.
    """
    jobs, channel = collection.jobs, collection.group.channel
    saved, manifest = OrderedDict[str, Any](), jobs.described[worker].manifest
    published, policy = channel.newest(worker, POLICY), unfrozen(jobs.requests[worker].policy)
    if published is not None:
        snapshot = published[1]  # as the module's own `state_dict` would give it
        tensors = {name: value for name, value in snapshot.tensors().items() if not manifest.weights[name].loose}
        tensors |= {alias: tensors[name] for alias, name in manifest.aliases.items() if name in tensors}
        saved[WEIGHTS] = OrderedDict({name: value.clone() for name, value in tensors.items()} | {**snapshot.extras})
    elif isinstance(policy, nn.Module) and not manifest.empty:
        saved[WEIGHTS] = OrderedDict(policy.state_dict())
    saved["env_state_dict"] = OrderedDict()
    saved[TRAJ_POOL] = {"traj_id": torch.tensor(jobs.records[worker].next_id, dtype=torch.int64)}
    saved["policy_version"] = channel.version_for(worker)
    saved["seed"] = None if jobs.seeding is None else jobs.seeding.root
    saved[LIFE] = jobs.records[worker].life
    return saved


def facts_of(collection: CollectorService, background: Background) -> tuple[dict[str, Any], dict[str, Any]]:
    """Numbers, bools and short strings of a collector: of all workers together, and by worker."""
    group, fleet, counters = collection.group, collection.group.fleet, collection.counters
    here = collection.member
    if here is not None:
        known = group.workers[0]
        known.version, known.life, known.lag = here.version, here.life, collection.version - here.version
    else:
        with suppress(Closed):  # nothing more happens to the workers then
            fleet.process_events()
            group.sweep()
    standings, records, episodes = fleet.statuses(), group.workers, counters.episodes
    tally = group.tally() if here is None else here.counted()  # also of a draw that Ctrl-C has broken off
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
        "fragments_lost": group.fragments_lost + tally.fragments_lost,
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
            "workers_alive": 0 if collection.access.halted else len(fleet.up),
            "worker_frames": sum(one.frames for one in list(records.values())),
        }
    if group.total is not None:
        facts |= {"total_frames": group.total, "completed": collection.completed}
    if episodes.means is not None:
        facts |= zip(("episode_return", "episode_length"), episodes.means, strict=True)
    if (error := background.error) is not None:
        facts["error"] = f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
    busy, per_worker = _busy(collection), dict[str, Any]()
    for worker, standing in standings.items():
        record, name = records[worker], f"worker_{worker if here is None else here.worker_idx}"
        per_worker[f"{name}/frames"] = record.frames
        per_worker[f"{name}/life"] = max(standing.life, record.life)
        per_worker[f"{name}/policy_version"] = record.version
        per_worker[f"{name}/staleness"] = record.lag
        per_worker[f"{name}/state"] = "closed" if collection.access.halted else standing.summary
        per_worker[f"{name}/busy"] = worker in busy
    return facts, per_worker


def status_line(name: str, collection: CollectorService, background: Background) -> str:
    """One line: who is up, how many frames, which version."""
    fleet, busy, most = collection.group.fleet, _busy(collection), collection.options.restarts.max_per_worker
    said, late = Counter[str](), len(fleet.abandoned)
    for worker, one in fleet.statuses().items():
        life = f" (life {one.restarts} of {most})" if one.summary == "restarting" else ""
        said[one.summary + life if one.phase != "up" else "busy" if worker in busy else "idle"] += 1
    parts = [f"{number} {state}" for state, number in said.items()]
    parts = ["closed"] if collection.access.halted else parts
    parts += [f"{late} abandoned, but busy"] if late else []
    parts += ["collecting in the background"] if background.running else []
    frames, version = collection.counters.frames, collection.version
    size, unit = (1_000_000, "M") if frames >= 1_000_000 else (1_000, "k")
    short = f"{frames / size:.1f}{unit}" if frames >= size else frames
    workers = f"{said.total()} worker{'' if said.total() == 1 else 's'}"
    return f"<{name} {workers}: {', '.join(parts)}; {short} frames, version {version}>"


def _busy(collection: CollectorService) -> set[int]:
    """Workers that have not answered what they were asked."""
    return {request.worker for request in list(collection.group.out) if not request.ticket.done}
