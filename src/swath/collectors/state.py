"""The state of a collector: `stats()` and `repr`, which ask no worker; what it saves and restores."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from swath.collectors.background import Background
from swath.collectors.messages import Seeding, unpickle
from swath.collectors.remote import LIFE, TRAJ_POOL, WEIGHTS, last_life_of, require_worker_state
from swath.collectors.service import CollectorService
from swath.errors import Closed
from swath.group.group import worker_facts
from swath.rollout.hosts.sources import claim, require_unused
from swath.weights.snapshot import POLICY, take_snapshot

LONGEST_ERROR = 300
COUNTED = ("frames", "batches", "frames_dropped", "batches_dropped", "batches_overdue", "fps", "seconds")
COUNTERS = ("frames", "iter", "traj_pool", "policy_version", "seed")


def saved_fleet(collection: CollectorService) -> tuple[dict[int, OrderedDict[str, Any]], dict[str, Any]]:
    """Return the state of every worker, and the counters of all."""
    answers = collection.open_group.call("state_dict")
    records = collection.group.records
    saved = {}
    for worker in sorted(collection.jobs.described):
        saved[worker] = answers[worker] if worker in answers else state_without_worker(collection, worker)
        saved[worker] |= {"frames": records[worker].frames, "iter": records[worker].fragments - 1}
    return saved, {
        "frames": collection.counters.frames,
        "iter": collection.counters.batches - 1,
        TRAJ_POOL: {"traj_id": max(part[TRAJ_POOL]["traj_id"] for part in saved.values())},
        "policy_version": collection.version,
        **Seeding.state_of(collection.jobs.seeding),
    }


def load_fleet(
    collection: CollectorService, parts: Mapping[int, Mapping[str, Any]], saved: Mapping[str, Any], *, strict: bool
) -> None:
    """Restore workers and counters, or change nothing if a part does not fit.

    Raises:
        ValueError: the run had ended, and another collector or evaluator steps the env.
    """
    jobs, env = collection.jobs, collection.jobs.requests[0].source.env
    if collection.options.in_process:  # it may have released the env at the end of its run
        require_unused(env, collection)
        claim(env, collection)
    counters, records = collection.counters, collection.group.records
    manifests = {worker: description.manifest for worker, description in jobs.described.items()}
    for worker, part in parts.items():
        require_worker_state(part, has_weights=not manifests[worker].empty, strict=strict)
    models: dict[int | None, dict[str, Any]] = {
        worker: {POLICY: take_snapshot(part[WEIGHTS], manifests[worker])} if WEIGHTS in part else {}
        for worker, part in parts.items()
    }
    version = int(saved.get("policy_version", collection.version))
    with collection.dropping() as calls:
        by_channel = {worker: {} for worker in models} if collection.options.in_process else models
        collection.group.channel.publish_each(by_channel, version)
        counters.restore(int(saved.get("frames", counters.frames)), int(saved.get("iter", counters.batches - 1)) + 1)
        collection.begin_randomly()
        if "seed" in saved:
            jobs.seed_with(saved["seed"], static=bool(saved.get("static_seed", False)))
        for worker, part in parts.items():
            record = records[worker]
            record.frames = int(part.get("frames", record.frames))
            record.fragments = int(part.get("iter", record.fragments - 1)) + 1
            record.life = max(record.life, last_life_of(part)) + 1
            rest = {name: value for name, value in part.items() if name != WEIGHTS or collection.options.in_process}
            rest["policy_version"] = version
            calls[worker] = "restore", rest, jobs.seeding


def state_without_worker(collection: CollectorService, worker: int) -> OrderedDict[str, Any]:
    """Return the newest weights for a worker that does not answer, and its seed; no transforms.

    There are no weights if a factory builds the policy and none were published.
    """
    jobs, channel = collection.jobs, collection.group.channel
    saved, manifest = OrderedDict[str, Any](), jobs.described[worker].manifest
    published, policy = channel.newest(worker, POLICY), unpickle(jobs.requests[worker].policy)
    if published is not None:
        snapshot = published[1]  # the same names and values as the module's own `state_dict`
        tensors = {name: value for name, value in snapshot.tensors().items() if not manifest.weights[name].loose}
        tensors |= {alias: tensors[name] for alias, name in manifest.aliases.items() if name in tensors}
        saved[WEIGHTS] = OrderedDict({name: value.clone() for name, value in tensors.items()} | {**snapshot.extras})
    elif isinstance(policy, nn.Module) and not manifest.empty:
        saved[WEIGHTS] = OrderedDict(policy.state_dict())
    saved["env_state_dict"] = OrderedDict()
    saved[TRAJ_POOL] = {"traj_id": torch.tensor(jobs.records[worker].next_id, dtype=torch.int64)}
    saved["policy_version"] = channel.newest_version(worker)
    saved |= Seeding.state_of(jobs.seeding)
    saved[LIFE] = jobs.records[worker].life
    return saved


def facts_of(collection: CollectorService, background: Background) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return numbers, bools and short strings of a collector: of all workers together, and by worker."""
    group, fleet, counters = collection.group, collection.group.fleet, collection.counters
    member = collection.member
    if member is not None:
        record = group.records[0]
        record.version, record.life, record.lag = member.version, member.life, collection.version - member.version
    else:
        with suppress(Closed):  # the workers do not change any more then
            fleet.process_events()
            group.settle_dropped()
    records, closed, episodes = group.records, collection.access.halted, counters.episodes
    tally = group.tally() if member is None else member.current_tally()  # includes a draw that Ctrl-C broke off
    numbers = {}
    for worker, status in fleet.statuses().items():
        record = records[worker]
        numbers[worker] = record.frames, max(status.life, record.life), record.version, record.lag
    first = 0 if member is None else member.worker_idx
    aggregate, per_worker = worker_facts(fleet, numbers, closed=closed, first=first)
    facts = {name: getattr(counters, name) for name in COUNTED} | aggregate
    facts |= {
        "requested_frames_per_batch": collection.batch_frames,
        "policy_version": collection.version,
        "restarts": fleet.restarts + tally.restarts,
        "fragments_lost": group.fragments_lost + tally.fragments_lost,
        "env_errors": tally.env_errors,
        "frames_discarded": counters.frames_discarded + tally.frames_discarded,
        "episodes": episodes.finished,
        "seconds_waiting": counters.seconds_waiting,
        "running": background.running,
    }
    if member is None:
        facts["worker_frames"] = sum(record.frames for record in list(records.values()))
    else:
        del facts["workers"], facts["workers_alive"]
    described = collection.jobs.described.values()
    plans = {entry.plan for entry in described} if member is None else {member.plans.status}
    if plans := plans - {""}:
        facts["plan"] = "; ".join(sorted(plans))[:LONGEST_ERROR]
    if group.total is not None:
        facts |= {"total_frames": group.total, "completed": collection.completed}
    if episodes.means is not None:
        facts |= zip(("episode_return", "episode_length"), episodes.means, strict=True)
    if (error := background.error) is not None:
        facts["error"] = f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
    busy = _busy(collection)
    return facts, per_worker | {f"worker_{first + worker}/busy": worker in busy for worker in numbers}


def status_line(name: str, collection: CollectorService, background: Background) -> str:
    """Return one line: states of workers, number of frames, version."""
    fleet, busy, limit = collection.group.fleet, _busy(collection), collection.options.restarts.max_per_worker
    states, late = Counter[str](), len(fleet.abandoned)
    for worker, status in fleet.statuses().items():
        life = f" (life {status.restarts} of {limit})" if status.summary == "restarting" else ""
        states[status.summary + life if status.phase != "up" else "busy" if worker in busy else "idle"] += 1
    parts = [f"{number} {state}" for state, number in states.items()]
    parts = ["closed"] if collection.access.halted else parts
    parts += [f"{late} abandoned, but busy"] if late else []
    parts += ["collecting in the background"] if background.running else []
    frames, version = collection.counters.frames, collection.version
    size, unit = (1_000_000, "M") if frames >= 1_000_000 else (1_000, "k")
    short = f"{frames / size:.1f}{unit}" if frames >= size else frames
    workers = f"{states.total()} worker{'' if states.total() == 1 else 's'}"
    return f"<{name} {workers}: {', '.join(parts)}; {short} frames, version {version}>"


def _busy(collection: CollectorService) -> set[int]:
    """Return the workers that have not answered all requests."""
    return {request.worker for request in list(collection.group.pending) if not request.ticket.done}
