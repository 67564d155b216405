"""Private random streams: states of the generators of torch, numpy and `random`, set and restored.

The generators are the process's: use these where no other thread draws meanwhile.
"""

from __future__ import annotations

import gc
import json
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.random import mtrand


@contextmanager
def preserve_generators(device: torch.device | None = None) -> Iterator[None]:
    """Restore the exact states of the generators after the body, also of a GPU `device`.

    Inside, the generators stay in use, since other threads may draw meanwhile.
    """
    states = GeneratorStates(device)
    try:
        yield
    finally:
        states.restore()


class GeneratorStates:
    """The exact states of the generators at this moment, of a GPU `device` too."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._devices = _generator_devices(device)
        self._torch, self._python = _exchange(self._devices), random.getstate()
        self._numpy = np.random.get_state(legacy=False)  # noqa: NPY002  users draw from it

    def restore(self) -> None:
        """Set the generators to these states."""
        _exchange(self._devices, self._torch)
        np.random.set_state(self._numpy)  # noqa: NPY002
        random.setstate(self._python)

    def equals(self, other: GeneratorStates) -> bool:
        """Return whether the states are equal."""
        same_numpy = json.dumps(self._numpy, default=np.ndarray.tolist) == json.dumps(
            other._numpy, default=np.ndarray.tolist
        )
        return same_numpy and self._python == other._python and all(map(torch.equal, self._torch, other._torch))


class PrivateStreams:
    """Generator states that depend on a seed alone, and whose use leaves the process's generators unchanged.

    While they are active, other threads of the process draw from them too. Do not activate them twice at once.

    Args:
        seed: of all generators.
        device: device of a policy; if it is a GPU, its generator is included.
    """

    def __init__(self, seed: int, device: torch.device | None = None) -> None:
        self._devices = _generator_devices(device)
        self._torch = [torch.Generator(dev).manual_seed(seed).get_state() for dev in self._devices]
        self._numpy: np.random.BitGenerator = np.random.MT19937(seed)
        self._python = random.Random(seed).getstate()  # noqa: S311  no secret

    @contextmanager
    def activate_fast(self) -> Iterator[None]:
        """Activate inside `activate`, in half the time: numpy forgets the spare number of a pair of normal ones."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Draw from these streams in the body, continuing where the last body ended, and restore the process's ones."""
        process_state = np.random.get_state(legacy=False)  # noqa: NPY002  users draw from it
        try:
            with self.activate_fast():
                yield
        finally:
            if process_state["has_gauss"]:
                np.random.set_state(process_state)  # noqa: NPY002

    def _exchange(self) -> None:
        """Exchange these states and those of the process."""
        before = _exchange(self._devices, self._torch), mtrand.get_bit_generator(), random.getstate()
        mtrand.set_bit_generator(self._numpy)
        random.setstate(self._python)
        self._torch, self._numpy, self._python = before


_one_thread = threading.Lock()


def _generator_devices(device: torch.device | None) -> list[torch.device]:
    return [torch.device("cpu"), *([device] if device is not None and device.type == "cuda" else [])]


def _exchange(devices: list[torch.device], states: Sequence[torch.Tensor | None] = (None, None)) -> list[torch.Tensor]:
    """Return the states of torch's generators and set others, if given.

    Runs in one thread at a time, without garbage collection: torch holds the generator's lock while it builds the
    tensor of its state. If garbage is collected there, a finalizer may let another thread run, which waits for the
    generator's lock while it holds Python's: a deadlock.
    """
    with _one_thread:
        collects, before = gc.isenabled(), list[torch.Tensor]()
        gc.disable()
        try:
            for device, state in zip(devices, states, strict=False):
                on_cpu = device.type == "cpu"
                before.append(torch.get_rng_state() if on_cpu else torch.cuda.get_rng_state(device))
                if state is not None and on_cpu:
                    torch.set_rng_state(state)
                elif state is not None:
                    torch.cuda.set_rng_state(state, device)
        finally:
            if collects:
                gc.enable()
    return before
