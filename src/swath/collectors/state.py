"""What a collector with many workers on this machine saves, and how it goes on from that."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from swath.collectors.remote import LIFE, TRAJ_POOL, WEIGHTS, last_life_of, require_parts
from swath.collectors.service import CollectorService
from swath.collectors.worker_request import thawed
from swath.weights.manifest import take
from swath.weights.snapshot import POLICY

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
    next_ids = [*(one.next_id for one in known.values()), *(int(part[TRAJ_POOL]["traj_id"]) for part in saved.values())]
    return saved, {
        "frames": collection.counters.frames,
        "iter": collection.counters.batches - 1,
        TRAJ_POOL: {"traj_id": torch.tensor(max(next_ids), dtype=torch.int64)},
        "policy_version": collection.version,
        "seed": None if seeding is None else seeding.root,
    }


def load_fleet(
    collection: CollectorService, parts: Mapping[int, Mapping[str, Any]], saved: Mapping[str, Any], *, strict: bool
) -> None:
    """Restore workers and counters; nothing has changed if something does not fit."""
    jobs = collection.jobs
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
            jobs.lives[worker] = max(jobs.last_life(worker), last_life_of(part)) + 1
            rest = {name: value for name, value in part.items() if name != WEIGHTS or collection.options.here}
            rest["policy_version"] = version
            calls[worker] = "restore", rest, jobs.seeding


def stand_in_for(collection: CollectorService, worker: int) -> OrderedDict[str, Any]:
    """The newest weights meant for it and its seed; no transforms.

    Of a policy that a factory builds, and of which nothing was published, there are no weights.
    """
    jobs, channel = collection.jobs, collection.group.channel
    saved, manifest = OrderedDict[str, Any](), jobs.described[worker].manifest
    published, policy = channel.newest(worker, POLICY), thawed(jobs.requests[worker].policy)
    if published is not None:
        snapshot = published[1]  # as the module's own `state_dict` would give it
        tensors = {name: value for name, value in snapshot.tensors().items() if not manifest.weights[name].loose}
        tensors |= {alias: tensors[name] for alias, name in manifest.aliases.items() if name in tensors}
        saved[WEIGHTS] = OrderedDict({name: value.clone() for name, value in tensors.items()} | {**snapshot.extras})
    elif isinstance(policy, nn.Module) and not manifest.empty:
        saved[WEIGHTS] = OrderedDict(policy.state_dict())
    saved["env_state_dict"] = OrderedDict()
    saved[TRAJ_POOL] = {"traj_id": torch.tensor(collection.group.workers[worker].next_id, dtype=torch.int64)}
    saved["policy_version"] = channel.version_for(worker)
    saved["seed"] = None if jobs.seeding is None else jobs.seeding.root
    saved[LIFE] = jobs.last_life(worker)
    return saved
