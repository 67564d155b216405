"""Columns as tensors on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from swath.errors import warn_of_no_effect
from swath.rollout_workers.batches.columns import Columns
from swath.rollout_workers.batches.leaves import Leaf, as_tensor, holds_objects
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.nests import map_nest


def to_device(batch: Columns, device: Any, *, pin_memory: bool) -> None:
    """All columns but `infos`, in place; float64 becomes float32, and what no tensor can hold stays as it is."""
    target = torch.device("cpu" if device is None else device)
    if pin_memory and target.type != "cuda":
        warn_of_no_effect("to_device(pin_memory=…)", f"it is for CUDA devices, the device is {target}")
        pin_memory = False

    def moved(leaf: Leaf) -> Leaf:
        if isinstance(leaf, np.ndarray) and not holds_objects(leaf):
            leaf = as_tensor(leaf)
        if not isinstance(leaf, torch.Tensor):
            return leaf
        leaf = leaf.float() if leaf.dtype == torch.float64 else leaf
        if pin_memory and leaf.device.type == "cpu":
            leaf = leaf.pin_memory()
        return leaf.to(target, non_blocking=pin_memory)

    columns = {name: map_nest(moved, column) for name, column in batch.items() if name != ColumnNames.INFOS}
    dict.update(batch, columns)
