"""Private random streams: the generators of torch, numpy and `random`, swapped in and put back.

They are those of the process. On a thread that is `apart`, torch's are that thread's own, and those of numpy and
`random`, which the other threads go on drawing from, are left alone. What torch draws is the same to the last bit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch
from numpy.random import mtrand

from swath.rollout.apart import is_apart


@contextmanager
def preserved(device: torch.device | None = None) -> Iterator[None]:
    """Leave the generators as they were, to the last bit; that of `device` too if it is a GPU."""
    devices = _with_cpu(device)
    before = _torch_states(devices)
    with _others_preserved():
        try:
            yield
        finally:
            _set_torch_states(devices, before)


class PrivateStreams:
    """Generators of one's own: what is drawn from them depends on their seed alone, and leaves no trace outside.

    While they are in force, other threads of the process draw from them too, unless this one is `apart`. They are not
    to be put in force again within.

    Args:
        seed: of all of them.
        device: where a policy runs; its generator is one of them if it is a GPU.
    """

    def __init__(self, seed: int, device: torch.device | None = None) -> None:
        self._torch = _OfTorch(seed, _with_cpu(device))
        self._others = _Others(seed)

    def swapped(self) -> AbstractContextManager[None]:
        """Draw from these streams, which go on from there the next time; the process's own are put back exactly."""
        return self.in_force() if is_apart() else self._swapped()

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """As `swapped` in half the time, for within it: numpy forgets the spare number of a pair of normal ones."""
        streams = (self._torch,) if is_apart() else (self._torch, self._others)
        for stream in streams:
            stream.exchange()
        try:
            yield
        finally:
            for stream in streams:
                stream.exchange()

    @contextmanager
    def _swapped(self) -> Iterator[None]:
        theirs = np.random.get_state(legacy=False)  # noqa: NPY002  users draw from it
        try:
            with self.in_force():
                yield
        finally:
            if theirs["has_gauss"]:
                np.random.set_state(theirs)  # noqa: NPY002


class _OfTorch:
    """Torch's streams, or what was in force while they are."""

    def __init__(self, seed: int, devices: list[torch.device]) -> None:
        self._devices = devices
        self._states = [torch.Generator(where).manual_seed(seed).get_state() for where in devices]

    def exchange(self) -> None:
        """Put these in force and keep what was; again to put that back."""
        before = _torch_states(self._devices)
        _set_torch_states(self._devices, self._states)
        self._states = before


class _Others:
    """The streams of numpy and `random`, or what was in force while they are."""

    def __init__(self, seed: int) -> None:
        self._numpy: np.random.BitGenerator = np.random.MT19937(seed)
        self._python = random.Random(seed).getstate()  # noqa: S311  no secret

    def exchange(self) -> None:
        """Put these in force and keep what was; again to put that back."""
        before = mtrand.get_bit_generator(), random.getstate()
        mtrand.set_bit_generator(self._numpy)
        random.setstate(self._python)
        self._numpy, self._python = before


def _others_preserved() -> AbstractContextManager[None]:
    return nullcontext() if is_apart() else _of_the_process_preserved()


@contextmanager
def _of_the_process_preserved() -> Iterator[None]:
    before = np.random.get_state(legacy=False), random.getstate()  # noqa: NPY002  users draw from it
    try:
        yield
    finally:
        np.random.set_state(before[0])  # noqa: NPY002
        random.setstate(before[1])


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
