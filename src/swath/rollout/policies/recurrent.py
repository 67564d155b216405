"""Policies with a memory: they read back in the next step what they wrote under `"next"`.

state ──▶ policy ──▶ ("next", state) ──▶ copied ──▶ state of the next step, zero where an episode begins
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from swath.keys import IS_INIT, Key, as_key, as_tuple, under_next
from swath.rollout.buffer import Column, column_of
from swath.rollout.policies.bound import UNLIKE, Pipeline, changed
from swath.rollout.policies.calling import InputBatch
from swath.rollout.policies.placement import taker
from swath.rollout.spaces import Leaves


@dataclass(frozen=True)
class Memory:
    """What a policy remembers.

    Attributes:
        keys: root keys of its state.
        reads_init: whether it reads `is_init`, the flag of an episode's first step.
        written_by_env: what the env writes, for messages.
    """

    keys: tuple[Key, ...] = ()
    reads_init: bool = False
    written_by_env: tuple[Key, ...] = ()

    @classmethod
    def of(cls, read: Sequence[Key], written_by_env: Sequence[Key]) -> Memory:
        """What a policy reads that the env does not write."""
        wanted = dict.fromkeys(as_key(as_tuple(key)) for key in read)
        missing = [key for key in wanted if key not in written_by_env]
        return cls(tuple(key for key in missing if key != IS_INIT), IS_INIT in missing, tuple(written_by_env))

    @property
    def inputs(self) -> tuple[Key, ...]:
        """Keys of all that is supplied: the state, then `is_init` if it is read."""
        return (*self.keys, IS_INIT) if self.reads_init else self.keys

    def first(self, batch_shape: tuple[int, ...], device: torch.device | None) -> list[torch.Tensor | None]:
        """The inputs of the first call, before which the shape of the state is unknown."""
        return [*(None for _ in self.keys), *([_all_init(batch_shape, device)] if self.reads_init else [])]

    def explain(self, error: Exception) -> None:
        """Note on the error of a first call what was missing in it."""
        if self.keys:
            error.add_note(
                f"the env does not write {list(self.keys)}; a recurrent policy gets None for them in its first call, "
                "to learn their shape"
            )

    def require_written(self, keys: Sequence[Any] | None) -> None:
        """Raise `KeyError` if a policy with these outputs (`None`: unknown) lacks its own state under `"next"`."""
        written = None if keys is None else [as_tuple(key) for key in keys]
        missing = [key for key in self.keys if written is not None and under_next(key) not in written]
        if missing:
            raise KeyError(
                f"the policy reads {missing}; the env writes {list(self.written_by_env)}, "
                "and the policy does not write them under 'next' either"
            )


class Recurrent:
    """A policy with a memory, bound to a host.

    Args:
        pipeline: its strategies; the call takes the observation's tensors, the state's, then `is_init` if it is read.
        keys: the policy's outputs.
        example: values and leaves of these outputs.
        memory: what it remembers.
        batch: `*B`, and the device of its inputs.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        keys: tuple[Key, ...],
        example: tuple[list[Any], Leaves],
        memory: Memory,
        batch: InputBatch,
    ) -> None:
        memory.require_written(keys)
        values, leaves = example
        self._pipeline, self._batched = pipeline, bool(batch[0])
        self.explores = pipeline.explores
        self._state_at = tuple(keys.index(under_next(key)) for key in memory.keys)
        self._state = [torch.zeros_like(torch.as_tensor(values[at])) for at in self._state_at]
        self._is_init = [_all_init(*batch)] if memory.reads_init else []
        self._before = (self._state, self._is_init)
        remembered = [*self._state, *self._is_init]
        self._memory_takes = [taker(batch[0], tensor) for tensor in remembered]
        self.keys = (*keys, *memory.inputs)
        self.columns: tuple[Column, ...] = tuple(column_of(leaf) for leaf in [*leaves, *self._taken(remembered)])

    def __call__(self, observation: Leaves) -> Leaves:
        """Outputs for this observation and the remembered state, and that state."""
        line, memory = self._pipeline, [*self._state, *self._is_init]
        # Copies on both sides: a policy may write into what it is given, and again into what it gave.
        answer = line.call([*line.give(observation), *(tensor.clone() for tensor in memory)])
        try:
            values = line.unpack(answer)
            leaves = [take(value) for take, value in zip(line.takes, values, strict=True)]
        except UNLIKE as error:
            raise changed(answer, self.keys[: len(line.takes)]) from error
        self._before = (self._state, self._is_init)
        self._state = [torch.as_tensor(values[at]).clone() for at in self._state_at]
        self._is_init = [torch.zeros_like(init) for init in self._is_init]
        return [*leaves, *self._taken(memory)]

    def begin(self, envs: Sequence[int]) -> None:
        """Forget the state of these envs."""
        where = list(envs) if self._batched else ...
        self._state = [_with(state, where, 0) for state in self._state]
        self._is_init = [_with(init, where, value=True) for init in self._is_init]

    def rewind(self) -> None:
        """Take the state back to before the last call: the policy is asked again for the same step."""
        self._state, self._is_init = self._before

    def skip(self) -> Leaves:
        """A step is made without this policy: it remembers nothing of it. The leaves of its memory before the step."""
        memory = [*self._state, *self._is_init]
        self._before = (self._state, self._is_init)
        self._state = [torch.zeros_like(state) for state in self._state]
        self._is_init = [torch.zeros_like(init) for init in self._is_init]
        return self._taken(memory)

    def take_over(self, other: Recurrent) -> None:
        """Go on from the other's state."""
        self._state, self._is_init, self._before = other._state, other._is_init, other._before

    def _taken(self, memory: Sequence[torch.Tensor]) -> Leaves:
        return [take(tensor) for take, tensor in zip(self._memory_takes, memory, strict=True)]


def _all_init(batch_shape: tuple[int, ...], device: torch.device | None) -> torch.Tensor:
    return torch.ones((*batch_shape, 1), dtype=torch.bool, device=device)


def _with(tensor: torch.Tensor, where: Any, value: Any) -> torch.Tensor:
    changed = tensor.clone()
    changed[where] = value
    return changed
