"""Private random streams: the process-wide generators of torch, numpy and `random`, swapped in and put back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from swath.seeds import derive

State = tuple[torch.Tensor, Any, Any]


def capture() -> State:
    """The present state of the three generators."""
    return torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002  users draw from it


def restore(state: State) -> None:
    """Put the three generators into this state."""
    torch.set_rng_state(state[0])
    np.random.set_state(state[1])  # noqa: NPY002
    random.setstate(state[2])


@contextmanager
def preserved() -> Iterator[None]:
    """Leave the generators as they were."""
    before = capture()
    try:
        yield
    finally:
        restore(before)


class PrivateStreams:
    """Random states of one worker, seeded from (root, worker, life); in force within `swapped()`."""

    def __init__(self, root: int, worker: int, life: int) -> None:
        seed = derive(root, "policy", worker, life)
        with preserved():
            torch.manual_seed(seed)
            np.random.seed(derive(root, "global", worker, life))  # noqa: NPY002
            random.seed(seed)
            self._state = capture()

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Draw from these streams, and put the process's own back afterwards."""
        before = capture()
        restore(self._state)
        try:
            yield
        finally:
            self._state = capture()
            restore(before)
