"""Columns as tensors on a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from swath.errors import warn_of_no_effect
from swath.rollout_workers.batches.columns import Columns
from swath.rollout_workers.batches.leaves import Leaf, as_tensor, holds_objects
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.batches.repeated import RepeatedValues
from swath.rollout_workers.nests import map_nest


@dataclass(frozen=True)
class Transfer:
    """How columns get to a device.

    Attributes:
        device: where to.
        pinned: through page-locked memory, without waiting for each.
        streams: the CUDA stream to copy on and the one that reads the copies; None for one stream that does both.
    """

    device: torch.device
    pinned: bool = False
    streams: tuple[Any, Any] | None = None

    @classmethod
    def of(cls, device: Any, *, pin_memory: bool, use_stream: bool, stream: Any) -> Transfer:
        """As `to_device` is asked; of what does nothing here is warned."""
        device = torch.device("cpu" if device is None else device)
        if device.type != "cuda":
            _warn(f"it is for CUDA devices, the device is {device}", pin_memory=pin_memory, use_stream=use_stream)
            return cls(device)
        if not use_stream:
            _warn("use_stream is False", stream=stream is not None)
            return cls(device, pin_memory)
        return cls(device, pin_memory, (stream or _new_stream(device), torch.cuda.current_stream(device)))

    @contextmanager
    def running(self) -> Iterator[None]:
        """While columns are copied: behind the work on them that was begun, and before that which follows."""
        if self.streams is None:
            yield
            return
        copying, reading = self.streams
        copying.wait_stream(reading)
        with torch.cuda.stream(copying):
            yield
        reading.wait_stream(copying)

    def __call__(self, leaf: Leaf) -> Leaf:
        """A leaf on the device; what no tensor can hold stays as it is."""
        if isinstance(leaf, RepeatedValues):
            return RepeatedValues(map_nest(self, leaf.values), leaf.lengths, leaf.max_len)
        if isinstance(leaf, np.ndarray) and not holds_objects(leaf):
            return self._moved(as_tensor(leaf))
        return self._moved(leaf) if isinstance(leaf, torch.Tensor) else leaf

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == torch.float64:
            tensor = tensor.float()
        if self.pinned and tensor.device.type == "cpu":
            tensor = tensor.pin_memory()
        moved = tensor.to(self.device, non_blocking=self.pinned)
        if self.streams is not None and moved.is_cuda:
            moved.record_stream(self.streams[1])
        return moved


def to_device(batch: Columns, transfer: Transfer) -> None:
    """All columns but `infos`, in place."""
    with transfer.running():
        moved = {name: map_nest(transfer, column) for name, column in batch.items() if name != ColumnNames.INFOS}
    dict.update(batch, moved)


def _new_stream(device: torch.device) -> Any:
    make: Any = torch.cuda.Stream
    return make(device)


def _warn(why: str, **asked: bool) -> None:
    for setting in (setting for setting, is_asked in asked.items() if is_asked):
        warn_of_no_effect(f"to_device({setting}=…)", why)
