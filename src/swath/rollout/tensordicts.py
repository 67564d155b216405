"""Where the steps of TensorDict envs are kept: copies of them, stacked at the end, lazily where shapes change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from swath.keys import DONE, NEXT, TIME, TRUNCATED, Key, as_tuple, under_next
from swath.rollout.hosts.specs import TensorDictSpec
from swath.rollout.loop import Step
from swath.rollout.spaces import Array


@dataclass(slots=True)
class TensorDictRows:
    """T steps of B envs as one TensorDict `[*B, T]`.

    Attributes:
        spec: the envs.
        template: a step of zeros, `[*B]`.
        terminated: bool `[B, T]`.
        truncated: bool `[B, T]`.
        steps: copies of the steps that were made, `[*B]` each; some envs and policies write all into the same memory.
        valid: bool `[B, T]`: the row is a transition; `None` if all are.
        restarted: envs that failed before the first row, so that an episode of the fragment before was given up.
        stacked: all steps; there once the rows are sealed.
    """

    spec: TensorDictSpec
    template: TensorDictBase
    terminated: Array
    truncated: Array
    steps: list[TensorDictBase] = field(default_factory=list)
    valid: Array | None = None
    restarted: Sequence[int] = ()
    stacked: Any = None

    @property
    def last(self) -> Array:
        """Rows that end their episode."""
        return np.logical_or(self.terminated, self.truncated)

    @property
    def n_valid(self) -> int:
        """How many rows are transitions."""
        return self.terminated.size if self.valid is None else int(self.valid.sum())

    @property
    def reward(self) -> Array:
        """Float32 `[B, T]`: the sum over all reward entries and their dimensions behind `*B`."""
        total = np.zeros(self.terminated.shape, dtype=np.float32)
        for entry in entries_of(self.stacked.get(NEXT), self.spec.rewarded):
            total += entry.detach().cpu().reshape(*total.shape, -1).sum(-1, dtype=torch.float32).numpy()
        return total

    @property
    def next_observation(self) -> list[Any]:
        """What the steps led to, entry by entry."""
        return [self.stacked.get(under_next(key)) for key in self.spec.observed]

    def cut_last(self) -> None:
        """The last transition of each env is marked as truncated, its episode goes on."""
        n_envs, n_steps = self.terminated.shape
        final = np.full(n_envs, n_steps - 1)
        if self.valid is not None:
            final -= np.argmax(self.valid[:, ::-1], axis=1)
        for env in range(n_envs) if self.valid is None else np.flatnonzero(self.valid.any(axis=1)):
            self._cut(int(env), int(final[env]))

    def blank_from(self, n_steps: int) -> None:
        """Rows from step `n_steps` on were never made: zero, and no transitions."""
        made = list(self.stacked.unbind(-1)) if self.stacked is not None else []
        blank = _zero(made[-1] if made else self.template)
        n_blank = self.terminated.shape[1] - n_steps
        self.stacked = _stack([*made[:n_steps], *[blank] * n_blank], self.spec)
        if self.valid is None:
            self.valid = np.ones(self.terminated.shape, dtype=np.bool_)
        self.valid[:, n_steps:] = False

    def seal(self, cuts: Sequence[tuple[int, int]]) -> None:
        """All steps are there: stack them, and mark where an episode was given up (env, step)."""
        self.stacked = _stack(self.steps, self.spec)
        self.steps = []
        for env, step in cuts:
            self._cut(env, step)

    def batch(self, extras: Mapping[Key, torch.Tensor], *, compact: bool) -> Any:
        """The batch `[*B, T]` with further entries."""
        batch = self.stacked
        if compact:
            batch = batch.exclude(*(under_next(key) for key in self.spec.observed))
        for key, value in extras.items():
            batch.set(key, value)
        return batch

    def _cut(self, env: int, step: int) -> None:
        """This row is the last of its episode: truncated, and done, in every group."""
        where = (*np.unravel_index(env, self.spec.batch_shape), step) if self.spec.batch_shape else (step,)
        for key in self.spec.flags:
            if as_tuple(key)[-1] in (TRUNCATED, DONE):
                flag = self.stacked.get(under_next(key)).clone()
                flag[where] = True
                self.stacked.set(under_next(key), flag)
        self.truncated[env, step] = True


class TensorDictBuffer:
    """Room for fragments of T steps of TensorDict envs.

    Args:
        spec: the envs.
        template: a step of zeros, `[*B]`.
        n_steps: T.
    """

    def __init__(self, spec: TensorDictSpec, template: TensorDictBase, n_steps: int) -> None:
        self._spec, self._template, self.n_steps = spec, template, n_steps
        self._cuts: list[tuple[int, int]] = []

    def open(self) -> TensorDictRows:
        """Rows for one fragment."""
        shape = (self._spec.num_envs, self.n_steps)
        self._cuts = []
        return TensorDictRows(self._spec, self._template, np.zeros(shape, np.bool_), np.zeros(shape, np.bool_))

    def write(self, rows: TensorDictRows, t: int, step: Step) -> None:
        """Keep step `t`."""
        made = step.outputs[0]
        rows.steps.append(made.clone())
        for env, terminated, truncated in step.ended:
            rows.terminated[env, t] = terminated
            rows.truncated[env, t] = truncated
            if truncated and not self._is_marked(made, env):
                self._cuts.append((env, t))
        if step.cut:
            self._cut(rows, t, step.cut)

    def seal(self, rows: TensorDictRows, n_steps: int) -> None:  # noqa: ARG002  as many as were written
        """All steps are written: stack them."""
        rows.seal(self._cuts)

    def _is_marked(self, made: TensorDictBase, env: int) -> bool:
        """Whether the env itself said that its episode ended."""
        flags = (made.get(under_next(key)).reshape(self._spec.num_envs, -1)[env] for key in self._spec.done)
        return any(bool(flag.any()) for flag in flags)

    def _cut(self, rows: TensorDictRows, t: int, envs: Sequence[int]) -> None:
        if t == 0:
            rows.restarted = envs
        else:
            self._cuts.extend((env, t - 1) for env in envs if not rows.terminated[env, t - 1])


def blank_step(spec: TensorDictSpec, acted: TensorDictBase) -> TensorDictBase:
    """A step of zeros: what a policy has written into a first observation, with what a step adds to it."""
    blank = spec.imagine().to(acted.device) if acted.device is not None else spec.imagine().clear_device_()
    blank.update(acted)
    return _zero(blank)


def _zero(td: TensorDictBase) -> Any:
    return td.apply(torch.zeros_like, filter_empty=False)


def _stack(steps: Sequence[TensorDictBase], spec: TensorDictSpec) -> Any:
    stacked = LazyStackedTensorDict.maybe_dense_stack(list(steps), dim=len(spec.batch_shape))
    stacked.refine_names(..., TIME)
    return stacked.clear_device_()


def entries_of(td: TensorDictBase, keys: Sequence[Key]) -> Iterator[torch.Tensor]:
    """These entries, without those that are no one tensor because their shapes differ between agents or steps."""
    for key in keys:
        try:
            yield td.get(key)
        except RuntimeError:
            continue
