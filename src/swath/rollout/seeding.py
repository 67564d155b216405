"""Private random streams: the generators of torch, numpy and `random`, swapped in and put back.

They are those of the process: to be used where no other thread draws meanwhile.
"""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.random import mtrand


@contextmanager
def preserved(device: torch.device | None = None) -> Iterator[None]:
    """Leave the generators as they were, to the last bit; that of `device` too if it is a GPU.

    They are not exchanged, since other threads may draw meanwhile.
    """
    devices = _with_cpu(device)
    before = _exchanged(devices), np.random.get_state(legacy=False), random.getstate()  # noqa: NPY002  users draw
    try:
        yield
    finally:
        _exchanged(devices, before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])


class PrivateStreams:
    """Generators of one's own: what is drawn from them depends on their seed alone, and leaves no trace outside.

    While they are in force, other threads of the process draw from them too. They are not to be put in force again
    within.

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
    def in_force(self) -> Iterator[None]:
        """As `swapped` in half the time, for within it: numpy forgets the spare number of a pair of normal ones."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

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

    def _exchange(self) -> None:
        """Put these in force and keep what was; again to put that back."""
        before = _exchanged(self._devices, self._torch), mtrand.get_bit_generator(), random.getstate()
        mtrand.set_bit_generator(self._numpy)
        random.setstate(self._python)
        self._torch, self._numpy, self._python = before


_one_thread = threading.Lock()


def _with_cpu(device: torch.device | None) -> list[torch.device]:
    return [torch.device("cpu"), *([device] if device is not None and device.type == "cuda" else [])]


def _exchanged(devices: list[torch.device], states: Sequence[torch.Tensor | None] = (None, None)) -> list[torch.Tensor]:
    """Set the states of torch's generators, if given; those before. One thread at a time, without garbage collection.

    torch has the generator's lock while it builds the tensor of its state. If garbage is collected there, a finalizer
    may let another thread run; that thread then waits for the generator's lock, holds Python's, and nobody goes on.
    """
    with _one_thread:
        collects, before = gc.isenabled(), list[torch.Tensor]()
        gc.disable()
        try:
            for where, state in zip(devices, states, strict=False):
                on_cpu = where.type == "cpu"
                before.append(torch.get_rng_state() if on_cpu else torch.cuda.get_rng_state(where))
                if state is not None and on_cpu:
                    torch.set_rng_state(state)
                elif state is not None:
                    torch.cuda.set_rng_state(state, where)
        finally:
            if collects:
                gc.enable()
    return before
