"""What a collector in this process saves, and how it goes on from that."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from swath.collect.collection import Collection
from swath.collect.making.acting import Acting
from swath.collect.saving import plan_of_worker, save_worker
from swath.rollout.fragment import Fragment


def save(collection: Collection, acting: Acting) -> OrderedDict[str, Any]:
    """Counters, weights, version, seed and life."""
    counters = collection.counters
    saved = save_worker(collection.worker, acting, counters.frames, counters.batches)
    saved["policy_version"] = collection.version
    return saved


def load(collection: Collection, acting: Acting, saved: Any, *, strict: bool) -> None:
    """Go on from `saved`, in a new life, so that ids exceed all before.

    Raises:
        TypeError: no state dict.
        KeyError: parts are missing, unless `strict` is false.
        ValueError: weights, for a policy that has none; also only if `strict`.
    """
    go_on = plan_of_worker(collection.worker, acting, saved, strict=strict)
    counters = collection.counters
    frames, batches = int(saved.get("frames", counters.frames)), int(saved.get("iter", counters.batches - 1)) + 1
    version = int(saved.get("policy_version", collection.version))
    collection.drop_in_flight()
    counters.restore(frames, batches)
    collection.restore_version(version)
    collection.skip_random(frames)
    go_on()


def zero_batch(collection: Collection) -> TensorDictBase:
    """A batch as real ones are, of zeros."""
    worker = collection.worker
    rows = worker.blank_rows()
    ids = np.zeros(rows.terminated.shape, dtype=np.int64)
    fragment = Fragment(rows, ids, ids.copy(), 0)
    zeros: TensorDictBase = collection.shaper.without_ids(collection.shaper.plain(fragment)).apply(torch.zeros_like)
    return zeros
