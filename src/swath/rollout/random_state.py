"""Private random streams: the process-wide generators of torch, numpy and `random`, swapped in and put back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand


@contextmanager
def preserved(device: torch.device | None = None) -> Iterator[None]:
    """Leave the generators as they were, to the last bit; that of `device` too if it is a GPU."""
    before = _torch_states(_with_cpu(device)), np.random.get_state(legacy=False), random.getstate()  # noqa: NPY002
    try:
        yield
    finally:
        _set_torch_states(_with_cpu(device), before[0])
        np.random.set_state(before[1])  # noqa: NPY002  users draw from it
        random.setstate(before[2])


class PrivateStreams:
    """Generators of one's own: what is drawn from them depends on their seed alone, and leaves no trace outside.

    While they are in force, other threads of the process draw from them too.

    Args:
        seed: of all of them.
        device: where a policy runs; its generator is one of them if it is a GPU.
    """

    def __init__(self, seed: int, device: torch.device | None = None) -> None:
        self._devices = _with_cpu(device)
        self._torch = [torch.Generator(where).manual_seed(seed).get_state() for where in self._devices]
        self._numpy: np.random.BitGenerator = np.random.MT19937(seed)
        self._python = random.Random(seed).getstate()  # noqa: S311  no secret

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Draw from these streams, which go on from there the next time; the process's own are put back exactly."""
        theirs = np.random.get_state(legacy=False)  # noqa: NPY002  users draw from it
        try:
            with self.in_force():
                yield
        finally:
            if theirs["has_gauss"]:
                np.random.set_state(theirs)  # noqa: NPY002

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """As `swapped` in half the time, for within it: numpy forgets the spare number of a pair of normal ones."""
        theirs = _torch_states(self._devices), mtrand.get_bit_generator(), random.getstate()
        self._put(self._torch, self._numpy, self._python)
        try:
            yield
        finally:
            self._torch, self._python = _torch_states(self._devices), random.getstate()
            self._put(*theirs)

    def _put(self, of_torch: list[torch.Tensor], of_numpy: np.random.BitGenerator, of_python: tuple[Any, ...]) -> None:
        _set_torch_states(self._devices, of_torch)
        mtrand.set_bit_generator(of_numpy)
        random.setstate(of_python)


def _with_cpu(device: torch.device | None) -> list[torch.device]:
    cpu = torch.device("cpu")
    return [cpu] if device is None or device.type != "cuda" else [cpu, device]


def _torch_states(devices: list[torch.device]) -> list[torch.Tensor]:
    return [
        torch.get_rng_state() if where.type == "cpu" else torch.cuda.get_rng_state(where) for where in devices
    ]  # fmt: skip


def _set_torch_states(devices: list[torch.device], states: list[torch.Tensor]) -> None:
    for where, state in zip(devices, states, strict=True):
        if where.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, where)
