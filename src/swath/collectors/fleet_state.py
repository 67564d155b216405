"""What a collector with many workers on this machine saves, and how it goes on from that."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

from swath.collect.background import Background
from swath.collect.saving import WEIGHTS
from swath.collectors.fleet_assembly import Assembled
from swath.collectors.weight_arguments import POLICY
from swath.weights.snapshot import take
from swath.workers.tickets import Ticket

OWN = ("frames", "iter", "traj_pool", "policy_version", "seed")


class FleetState:
    """`state_dict` and `load_state_dict`."""

    _assembled: Assembled
    _background: Background

    def state_dict(self) -> OrderedDict[str, Any]:
        """`worker0`, `worker1`, … each with its weights, transforms, seed and life; and the counters of all.

        Simulators and what is in flight are not saved. A worker that is being replaced has no entry for its env.

        Raises:
            WorkerLate: a worker did not answer in time.
            Exception: what stopped the background thread.
        """
        self._assembled.collection.gate.require_open()
        self._background.raise_kept()
        return saved_fleet(self._assembled)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Restore what `state_dict` saved; what is in flight is dropped, and new episodes begin in new lives.

        Raises:
            KeyError: parts are missing, unless `strict=False`, or weights do not fit.
            ValueError: weights of other shapes, or another number of workers.
            WorkerLate: a worker did not answer in time.
        """
        workers = sorted(self._assembled.described)
        missing = [part for part in (*(f"worker{worker}" for worker in workers), *OWN) if part not in state_dict]
        if missing and strict:
            raise KeyError(f"the state dict lacks {missing}; pass strict=False to restore what is there")
        parts = {worker: state_dict[f"worker{worker}"] for worker in workers if f"worker{worker}" in state_dict}
        load_fleet(self._assembled, parts, state_dict, strict=strict)


def saved_fleet(assembled: Assembled) -> OrderedDict[str, Any]:
    """What every worker saves, and the counters of all."""
    answers = assembled.collection.control("state_dict")
    saved: OrderedDict[str, Any] = OrderedDict()
    for worker in sorted(assembled.described):
        if worker in answers:
            saved[f"worker{worker}"] = answers[worker]
    saved.update(counters_of(assembled))
    return saved


def counters_of(assembled: Assembled) -> dict[str, Any]:
    """Counters, ids, version and seed of the whole collection."""
    collection = assembled.collection
    seeding = next(iter(assembled.crew.standing.seeding.values()), None)
    next_id = max(collection.desk.known.next_ids.values(), default=0)
    return {
        "frames": collection.counters.frames,
        "iter": collection.counters.batches - 1,
        "traj_pool": {"traj_id": torch.tensor(next_id, dtype=torch.int64)},
        "policy_version": collection.version,
        "seed": None if seeding is None else seeding.root,
    }


def load_fleet(
    assembled: Assembled, parts: Mapping[int, Mapping[str, Any]], saved: Mapping[str, Any], *, strict: bool
) -> None:
    """Restore workers, then counters."""
    collection, standing = assembled.collection, assembled.crew.standing
    with collection.forgetting():
        tickets: dict[int, Ticket] = {}
        for worker, part in parts.items():
            tickets |= collection.send("load_state_dict", (part, strict), {}, [worker])
    collection.answers(tickets)
    standing.lives.update(collection.control("life"))
    counters = collection.counters
    counters.frames = int(saved.get("frames", counters.frames))
    counters.batches = int(saved.get("iter", counters.batches - 1)) + 1
    collection.skip_random(counters.frames)
    manifests = {worker: description.manifest for worker, description in assembled.described.items()}
    weights = {worker: part[WEIGHTS] for worker, part in parts.items() if WEIGHTS in part}
    version = int(saved.get("policy_version", collection.version))
    collection.desk.channel.publish_each(
        {worker: {POLICY: take(weights[worker], manifests[worker])} if worker in weights else {} for worker in parts},
        version,
    )
