"""On which device the batches of many workers live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from swath.errors import warn

CPU = torch.device("cpu")


class Homes:
    """Moves batches to where they live.

    Args:
        storing: the device by worker; `None` sets none. One that this process lacks is a `UserWarning`, and the CPU.
        joined: whether batches are made of what several workers made; where their devices differ, they are joined on
            the CPU.
    """

    def __init__(self, storing: Sequence[torch.device | None], *, joined: bool) -> None:
        there = {device: _available(device) for device in dict.fromkeys(storing)}
        self._devices = [there[device] for device in storing]
        if joined and len(set(self._devices)) > 1:
            self._devices = [CPU]

    def place(self, batch: Any, worker: int) -> Any:
        """What a worker made, or what it is a part of; those that were added are as the first."""
        device = self._devices[worker if worker < len(self._devices) else 0]
        return batch if device is None else batch.to(device)


def _available(device: torch.device | None) -> torch.device | None:
    if device is None or device == CPU or _exists(device):
        return device
    warn(f"storing_device={str(device)!r} is not there in this process: batches stay on the CPU")
    return CPU


def _exists(device: torch.device) -> bool:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):  # what torch raises if it does not have it, or was not built for it
        return False
    return True
