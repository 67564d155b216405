"""What is saved of a worker that cannot be asked, since it is being replaced or gone: what its next life would be."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from swath.collect.making.frozen import thawed
from swath.collect.saving import WEIGHTS
from swath.collectors.fleet_assembly import Assembled
from swath.weights.manifest import Manifest
from swath.weights.names import POLICY
from swath.weights.snapshot import Snapshot


def stand_in_for(assembled: Assembled, worker: int) -> OrderedDict[str, Any]:
    """The newest weights meant for it and its seed; no transforms.

    Of a policy that a factory builds, and of which nothing was published, there are no weights.
    """
    desk, standing = assembled.collection.desk, assembled.jobs.standing
    saved: OrderedDict[str, Any] = OrderedDict()
    weights = _weights_of(assembled, worker)
    if weights is not None:
        saved[WEIGHTS] = weights
    seeding = standing.seeding.get(worker)
    saved["env_state_dict"] = OrderedDict()
    saved["frames"] = 0
    saved["iter"] = -1
    saved["traj_pool"] = {"traj_id": torch.tensor(desk.known.next_ids.get(worker, 0), dtype=torch.int64)}
    saved["policy_version"] = desk.channel.version_for(worker)
    saved["seed"] = None if seeding is None else seeding.root
    saved["life"] = standing.last_life(worker)
    return saved


def _weights_of(assembled: Assembled, worker: int) -> OrderedDict[str, Any] | None:
    published = assembled.collection.desk.channel.newest(worker).get(POLICY)
    if published is not None:
        return _as_state_dict(published, assembled.described[worker].manifest)
    if assembled.described[worker].manifest.empty:
        return None
    policy = thawed(assembled.jobs.templates[worker].request.policy.policy)
    return OrderedDict(policy.state_dict()) if isinstance(policy, nn.Module) else None


def _as_state_dict(snapshot: Snapshot, manifest: Manifest) -> OrderedDict[str, Any]:
    """What the module's own `state_dict()` would give."""
    tensors = {name: value for name, value in snapshot.tensors().items() if not manifest.weights[name].loose}
    shared = {alias: tensors[name] for alias, name in manifest.aliases.items() if name in tensors}
    return OrderedDict({name: value.clone() for name, value in {**tensors, **shared}.items()} | {**snapshot.extras})
