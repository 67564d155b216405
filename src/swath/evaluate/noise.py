"""Noise of one's own: what is drawn within it depends on its seed alone, and leaves no trace outside."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.random import mtrand


class Noise:
    """States of the generators that policies draw from: torch's, numpy's and `random`'s.

    Args:
        seed: of all of them.
        device: where the policy runs; its generator is meant if it is a GPU, beside the CPU's.
    """

    def __init__(self, seed: int, device: torch.device | None = None) -> None:
        self._devices = (
            [torch.device("cpu")] if device is None or device.type == "cpu" else [torch.device("cpu"), device]
        )
        self._torch = [torch.Generator(where).manual_seed(seed).get_state() for where in self._devices]
        self._numpy = np.random.MT19937(seed)
        self._python = random.Random(seed).getstate()  # noqa: S311  no secret

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Draws of the process come from here, and go on from here the next time; its own states are put back after.

        Other threads of the process draw from here too in the meantime.
        """
        theirs = [_state(where) for where in self._devices], mtrand.get_bit_generator(), random.getstate()
        self._put(self._torch, self._numpy, self._python)
        try:
            yield
        finally:
            self._torch, self._python = [_state(where) for where in self._devices], random.getstate()
            self._put(*theirs)

    def _put(
        self, of_torch: list[torch.Tensor], of_numpy: np.random.BitGenerator, of_python: tuple[object, ...]
    ) -> None:
        for where, state in zip(self._devices, of_torch, strict=True):
            _set_state(where, state)
        mtrand.set_bit_generator(of_numpy)
        random.setstate(of_python)


def _state(device: torch.device) -> torch.Tensor:
    return torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)


def _set_state(device: torch.device, state: torch.Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.cuda.set_rng_state(state, device)
