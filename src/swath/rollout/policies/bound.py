"""A policy that is bound to a host, and the simplest of them: one without memory.

leaves [B, …] ─▶ give ─▶ tensors [*B, …] ─▶ call ─▶ answer ─▶ unpack ─▶ take ─▶ leaves [B, …], actions first
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from swath.keys import Key
from swath.rollout.buffer import Column
from swath.rollout.policies.answers import Unpack
from swath.rollout.policies.calling import Call
from swath.rollout.spaces import Leaves


class BoundPolicy(Protocol):
    """A policy bound to a host, with what its outputs look like. Used by one thread at a time."""

    keys: tuple[Key, ...]
    columns: tuple[Column, ...]
    explores: bool

    def __call__(self, observation: Leaves) -> Leaves:
        """Outputs `[B, …]`, action leaves first."""

    def begin(self, envs: Sequence[int]) -> None:
        """Episodes begin in these envs."""

    def rewind(self) -> None:
        """Take the last call back, for the envs that begin next."""

    def skip(self) -> Leaves:
        """A step is made without this policy; what it remembered before, `[B, …]`, for the last of its columns."""

    def take_over(self, other: Any) -> None:
        """Go on from what `other`, the same kind of policy, remembers."""


@dataclass(frozen=True)
class Pipeline:
    """The strategies of one bound policy, in order of use.

    Attributes:
        give: leaves of observations to tensors.
        call: calls the policy.
        unpack: its answer to values, in the order of its keys.
        takes: one per value: to a leaf.
        explores: whether the policy knows the exploration type.
    """

    give: Callable[[Leaves], list[torch.Tensor]]
    call: Call
    unpack: Unpack
    takes: tuple[Callable[[Any], Any], ...]
    explores: bool


UNLIKE = (TypeError, ValueError, KeyError, IndexError, AttributeError)
"""What comes of an answer that is not like the one at construction."""


def changed(answer: Any, keys: Sequence[Key]) -> TypeError:
    """The error of a policy whose answers have another form than the first one had."""
    return TypeError(
        f"the policy answered with {type(answer).__name__}, unlike at construction; "
        f"it must give {list(keys)} in the same form at every step"
    )


class Feedforward:
    """A policy without memory."""

    def __init__(self, pipeline: Pipeline, keys: tuple[Key, ...], columns: tuple[Column, ...]) -> None:
        self._give, self._call = pipeline.give, pipeline.call
        self._unpack, self._takes = pipeline.unpack, pipeline.takes
        self.explores = pipeline.explores
        self.keys = keys
        self.columns = columns

    def __call__(self, observation: Leaves) -> Leaves:
        """Outputs for this observation."""
        answer = self._call(self._give(observation))
        try:
            return [take(value) for take, value in zip(self._takes, self._unpack(answer), strict=True)]
        except UNLIKE as error:
            raise changed(answer, self.keys) from error

    def begin(self, envs: Sequence[int]) -> None:
        """Nothing is remembered."""

    def rewind(self) -> None:
        """Nothing is remembered."""

    def skip(self) -> Leaves:
        """Nothing is remembered."""
        return []

    def take_over(self, other: Any) -> None:
        """Nothing is remembered."""
