"""Memory of policies: in each step they read what they wrote under `"next"` in the step before.

state ──▶ policy ──▶ ("next", state) ──▶ copied ──▶ state of the next step, zero where an episode begins
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from swath.keys import IS_INIT, Key, under_next
from swath.rollout.spaces import Leaves


class Memory:
    """What a policy remembers: its state, and `is_init`, the flag of an episode's first step, if it reads that.

    Args:
        lead: leading dimensions of what is remembered: B or `*B`.
        wanted: what the policy reads and the env does not write.

    Attributes:
        state: keys of the state.
        keys: those, then `"is_init"` if it is wanted.
        leaves: what the next step reads, one per key; `None` for a state whose shape is not known yet.
    """

    def __init__(self, lead: tuple[int, ...], wanted: Iterable[Key] = ()) -> None:
        self._lead = lead
        keys = dict.fromkeys(wanted)
        self.state = tuple(key for key in keys if key != IS_INIT)
        self.keys = (*self.state, IS_INIT) if IS_INIT in keys else self.state
        self.leaves: Leaves = [np.ones((*lead, 1), np.bool_) if key == IS_INIT else None for key in self.keys]
        self._before, self._not_init = self.leaves, [zeros_like(leaf) for leaf in self.leaves[len(self.state) :]]
        self._at: list[int] = []

    def missing_in(self, outputs: Sequence[Key]) -> list[Key]:
        """The state that a policy with these outputs does not write under `"next"`, and so cannot remember."""
        return [key for key in self.state if under_next(key) not in outputs]

    def learn(self, keys: Sequence[Key], outputs: Leaves) -> None:
        """Begin with a state of zeros, given the outputs of a first step and their keys."""
        self._at = [keys.index(under_next(key)) for key in self.state]
        self.leaves = [*(zeros_like(outputs[at]) for at in self._at), *self.leaves[len(self._at) :]]
        self._before = self.leaves

    def keep(self, outputs: Leaves) -> Leaves:
        """Remember the state in the outputs of a step, which are as those learnt from; what the step itself read."""
        self._before = self.leaves
        # Copied: a policy may write again into what it gave.
        self.leaves = [*(copied(outputs[at]) for at in self._at), *self._not_init]
        return self._before

    def begin(self, envs: Sequence[int]) -> None:
        """Episodes begin in these envs: nothing is remembered of them."""
        self.leaves = [copied(leaf) for leaf in self.leaves]
        for key, leaf in zip(self.keys, self.leaves, strict=True):
            leaf.reshape(prod(self._lead), *leaf.shape[len(self._lead) :])[list(envs)] = key == IS_INIT

    def rewind(self) -> None:
        """Go back to before the last step."""
        self.leaves = self._before

    def take_over(self, other: Memory) -> None:
        """Go on from what the other remembers."""
        self.leaves, self._before = other.leaves, other._before


def copied(leaf: Any) -> Any:
    """A copy of an array or tensor."""
    return leaf.clone(memory_format=torch.contiguous_format) if isinstance(leaf, torch.Tensor) else leaf.copy()


def zeros_like(leaf: Any) -> Any:
    """Zeros like an array or tensor."""
    return torch.zeros_like(leaf) if isinstance(leaf, torch.Tensor) else np.zeros_like(leaf)
