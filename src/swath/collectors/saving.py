"""What a worker saves, and how it goes on from that."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

from swath.collectors.worker import Worker
from swath.rollout.episodes.ids import LIFE_BITS, WORKER_BITS
from swath.weights.manifest import plan

WEIGHTS, TRAJ_POOL, LIFE = "policy_state_dict", "traj_pool", "life"
PARTS = ("env_state_dict", "frames", "iter", TRAJ_POOL, "policy_version", "seed", LIFE)


def save_worker(worker: Worker, frames: int, batches: int) -> OrderedDict[str, Any]:
    """Weights, transforms, counters, version, seed and life."""
    saved, acting = OrderedDict[str, Any](), worker.acting
    if acting.module is not None:
        saved[WEIGHTS] = OrderedDict(
            (name, value.detach().clone() if isinstance(value, torch.Tensor) else value)
            for name, value in acting.module.state_dict().items()
        )
    stateful = getattr(worker.host, "stateful", None)
    saved["env_state_dict"] = OrderedDict() if stateful is None else stateful.state_dict()
    saved["frames"] = frames
    saved["iter"] = batches - 1
    saved[TRAJ_POOL] = {"traj_id": torch.tensor(worker.next_id, dtype=torch.int64)}
    saved["policy_version"] = worker.version
    saved["seed"] = None if worker.seeding is None else worker.seeding.root
    saved[LIFE] = worker.life
    return saved


def load_worker(worker: Worker, saved: Any, *, strict: bool) -> None:
    """Go on from `saved`, in a new life, so that ids exceed all before; nothing is changed where something is wrong.

    Raises:
        TypeError: no state dict.
        KeyError: parts are missing, unless `strict` is false.
        ValueError: weights, for a policy that has none; also only if `strict`.
    """
    acting = worker.acting
    require_parts(require_state(saved), has_weights=acting.module is not None, strict=strict)
    weights = saved.get(WEIGHTS) if acting.module is not None else None
    changes = [] if weights is None else [plan(module, weights) for module in acting.modules()]
    life = max(worker.life, int(saved.get(LIFE, 0)), life_of(saved)) + 1
    version = int(saved.get("policy_version", worker.version))
    for change in changes:
        change()
    worker.version = version
    stateful, state = getattr(worker.host, "stateful", None), saved.get("env_state_dict")
    if stateful is not None and state:
        stateful.load_state_dict(state)
    worker.go_on(life, saved.get("seed", None if worker.seeding is None else worker.seeding.root))


def require_state(saved: Any) -> Mapping[str, Any]:
    """The state itself.

    Raises:
        TypeError: no state dict.
    """
    if not isinstance(saved, Mapping):
        raise TypeError(f"the state dict is of type {type(saved).__name__}; give what state_dict() of a collector gave")
    return saved


def require_parts(saved: Mapping[str, Any], *, has_weights: bool, strict: bool) -> None:
    """What a worker saves must be there, if `strict`, and nothing that does not fit it.

    Raises:
        KeyError: parts are missing.
        ValueError: weights, for a policy that has none.
    """
    if not strict:
        return
    missing = [part for part in ((WEIGHTS, *PARTS) if has_weights else PARTS) if part not in saved]
    if missing:
        raise KeyError(f"the state dict lacks {missing}; pass strict=False to restore what is there")
    if not has_weights and WEIGHTS in saved:
        raise ValueError("the state dict has weights, but this policy has none; pass strict=False to leave them out")


def life_of(saved: Mapping[str, Any]) -> int:
    """The life in which the last id was given."""
    pool = saved.get(TRAJ_POOL)
    return 0 if pool is None else (int(pool["traj_id"]) >> LIFE_BITS) & (2 ** (WORKER_BITS - LIFE_BITS) - 1)
