"""What a collector saves, and how it goes on from that."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import nn

from swath.collect.collection import Collection
from swath.rollout.fragment import Fragment
from swath.rollout.trajectories import LIFE_BITS
from swath.weights.loading import plan

PARTS = ("policy_state_dict", "env_state_dict", "frames", "iter", "traj_pool", "policy_version", "seed", "life")


def save(collection: Collection, policy: Any) -> OrderedDict[str, Any]:
    """Counters, weights, version, seed and life."""
    worker = collection.worker
    saved: OrderedDict[str, Any] = OrderedDict()
    if isinstance(policy, nn.Module):
        saved["policy_state_dict"] = OrderedDict(
            (name, value.detach().clone() if isinstance(value, torch.Tensor) else value)
            for name, value in policy.state_dict().items()
        )
    saved["env_state_dict"] = OrderedDict()
    saved["frames"] = collection.counters.frames
    saved["iter"] = collection.counters.batches - 1
    saved["traj_pool"] = {"traj_id": torch.tensor(worker.next_id, dtype=torch.int64)}
    saved["policy_version"] = collection.version
    saved["seed"] = worker.seed
    saved["life"] = worker.life
    return saved


def load(collection: Collection, policy: Any, saved: Mapping[str, Any], *, strict: bool) -> None:
    """Go on from `saved`, in a new life, so that ids exceed all before.

    Raises:
        KeyError: parts are missing, unless `strict` is false.
        TypeError: the saved weights are for a policy that has none.
    """
    wanted = [part for part in PARTS if part != "policy_state_dict" or isinstance(policy, nn.Module)]
    missing = [part for part in wanted if part not in saved]
    if missing and strict:
        raise KeyError(f"the state dict lacks {missing}; pass strict=False to restore what is there")
    apply = plan(policy, saved["policy_state_dict"]) if "policy_state_dict" in saved else None
    if apply is not None:
        apply()
    worker, counters = collection.worker, collection.counters
    collection.drop_in_flight()
    collection.meter.forget()
    counters.frames = int(saved.get("frames", counters.frames))
    counters.batches = int(saved.get("iter", counters.batches - 1)) + 1
    collection.version = worker.version = int(saved.get("policy_version", collection.version))
    worker.seed = saved.get("seed", worker.seed)
    collection.skip_random(counters.frames)
    worker.next_life(max(worker.life, int(saved.get("life", 0)), _life_of(saved)) + 1)


def zero_batch(collection: Collection) -> TensorDictBase:
    """A batch as real ones are, of zeros."""
    worker = collection.worker
    rows = worker.blank_rows()
    ids = np.zeros(rows.reward.shape, dtype=np.int64)
    fragment = Fragment(rows, ids, ids.copy(), 0)
    batch: TensorDictBase = collection.shaper.plain(fragment)
    return batch.zero_()


def _life_of(saved: Mapping[str, Any]) -> int:
    """The life in which the last id was given."""
    pool = saved.get("traj_pool")
    return 0 if pool is None else (int(pool["traj_id"]) >> LIFE_BITS) & (2 ** (47 - LIFE_BITS) - 1)
