"""The generators of a thread that is apart: one per device, made when first asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class Streams:
    """One generator per device, each starting from the same seed, as `torch.manual_seed` leaves them.

    Args:
        seed: of all of them.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._of: dict[tuple[str, int], torch.Generator] = {}
        self._later: list[Callable[[], None]] = []

    def on(self, device: torch.device) -> torch.Generator:
        """The generator for draws on this device."""
        place = device.type, _index(device)
        if place not in self._of:
            self._of[place] = torch.Generator(torch.device(*place)).manual_seed(self._seed)
            if device.type == "cuda":
                self.gpus_are_there()
        return self._of[place]

    def once_there_are_gpus(self, seeding: Callable[[], None]) -> None:
        """Keep what is to be done to the generators of GPUs until one is asked for."""
        self._later.append(seeding)

    def gpus_are_there(self) -> None:
        """Do now what was kept."""
        waited, self._later = self._later, []
        for seeding in waited:
            seeding()


class _Here(threading.local):
    streams: Streams | None = None


_here = _Here()


def streams_of_this_thread() -> Streams | None:
    """Those in force on the calling thread; `None` if it is not apart."""
    return _here.streams


@contextmanager
def with_streams(streams: Streams) -> Iterator[None]:
    """These are in force on the calling thread."""
    before, _here.streams = _here.streams, streams
    try:
        yield
    finally:
        _here.streams = before


def _index(device: torch.device) -> int:
    if device.type == "cpu":
        return 0
    current: int = getattr(torch, device.type).current_device() if device.index is None else device.index
    return current
