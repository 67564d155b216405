"""Where the steps of TensorDict envs are kept: copies of them, stacked at the end, lazily where shapes change.

Entries are copied and stacked one by one: to copy and to stack whole TensorDicts takes more than twice as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase

from swath.keys import DONE, TIME, TRUNCATED, Key, as_tuple, is_private, under_next
from swath.rollout.buffer import Flags
from swath.rollout.hosts.base import TensorDictSpec
from swath.rollout.loop import Step
from swath.rollout.spaces import Array


class TensorDictRows(Flags):
    """T steps of B envs as one TensorDict `[*B, T]`.

    Args:
        spec: the envs.
        template: a step of zeros, `[*B]`.
        n_steps: T.

    Attributes:
        spec: the envs.
        steps: copies of the steps that were made, since some envs and policies write all into the same memory: the
            entries by key, or a TensorDict of another kind `[*B]` as it is.
    """

    def __init__(self, spec: TensorDictSpec, template: TensorDictBase, n_steps: int) -> None:
        terminated, truncated = np.zeros((2, spec.num_envs, n_steps), np.bool_)
        super().__init__(reward=np.zeros_like(truncated, np.float32), terminated=terminated, truncated=truncated)
        self.spec, self.steps, self._template = spec, list[Any](), template
        self._like: TensorDictBase | None = None  # the nested TensorDicts of a step, without entries

    @property
    def next_observation(self) -> list[Any]:
        """What the steps led to, entry by entry."""
        dim = len(self.spec.batch_shape)
        return [torch.stack([step.get(under_next(key)) for step in self.steps], dim) for key in self.spec.observed]

    def keep(self, made: TensorDictBase) -> None:
        """Copy a step."""
        if type(made) is not TensorDict:
            self.steps.append(made.clone())
            return
        if self._like is None:
            self._like = made.empty(recurse=True)
        entries = made.items(include_nested=True, leaves_only=True, is_leaf=lambda kind: kind is not TensorDict)
        self.steps.append({key: value.clone() for key, value in entries})

    def cut(self, envs: Sequence[int] | Array, t: int) -> None:
        """Step `t` is the last of these envs' episodes: truncated, and done, in every group."""
        if not len(envs):
            return
        shape, step = self.spec.batch_shape, self.steps[t]
        for key in self.spec.flags:
            if as_tuple(key)[-1] in (TRUNCATED, DONE):
                flag = step.get(under_next(key)).clone()
                flag[np.unravel_index(envs, shape) if shape else ...] = True
                step[under_next(key)] = flag
        self.truncated[envs, t] = True

    def blank_from(self, n_steps: int) -> None:
        """Rows from step `n_steps` on were never made: zero, and no transitions."""
        blank = _zero(self._tensordict(self.steps[-1]) if self.steps else self._template)
        del self.steps[n_steps:]
        for _ in range(n_steps, self.reward.shape[1]):
            self.keep(blank)
        self.reward[:, n_steps:] = 0
        self.void(slice(None), slice(n_steps, None))

    def batch(self, extras: Mapping[Key, torch.Tensor], *, compact: bool) -> Any:
        """The batch `[*B, T]` with further entries."""
        batch = self._stacked()
        batch.refine_names(..., TIME)
        batch = batch.clear_device_()
        if compact:
            batch = batch.exclude(*(under_next(key) for key in self.spec.observed))
        for key, value in extras.items():
            batch.set(key, value)
        return batch

    def _stacked(self) -> Any:
        shape, first = self.spec.batch_shape, self.steps[0]
        if self._like is not None and all(type(step) is dict and step.keys() == first.keys() for step in self.steps):
            with suppress(RuntimeError):  # shapes change
                entries = {key: torch.stack([step[key] for step in self.steps], len(shape)) for key in first}
                return _filled(self._like.unsqueeze(len(shape)).expand(*shape, len(self.steps)), entries)
        return LazyStackedTensorDict.maybe_dense_stack([*map(self._tensordict, self.steps)], dim=len(shape))

    def _tensordict(self, step: Any) -> TensorDictBase:
        return step if self._like is None or type(step) is not dict else _filled(self._like.empty(recurse=True), step)


class TensorDictBuffer:
    """Room for fragments of T steps of TensorDict envs.

    Args:
        spec: the envs.
        template: a step of zeros, `[*B]`.
        n_steps: T.
    """

    def __init__(self, spec: TensorDictSpec, template: TensorDictBase, n_steps: int) -> None:
        self._spec, self._template, self.n_steps = spec, template, n_steps

    def open(self) -> TensorDictRows:
        """Rows for one fragment."""
        return TensorDictRows(self._spec, self._template, self.n_steps)

    def write(self, rows: TensorDictRows, t: int, step: Step) -> None:
        """Keep step `t`."""
        made, ended = step.outputs[0], step.ended
        rows.keep(made)
        rows.reward[:, t] = step.reward
        rows.mark(t, step)
        if ended.truncated.any():  # some of them by a limit that the env does not know of
            n, done = len(rows.reward), [made.get(under_next(key)) for key in self._spec.done]
            own = torch.stack([flag.reshape(n, -1).any(1) for flag in done]).any(0).cpu().numpy()
            rows.cut(ended.envs[ended.truncated & ~own[ended.envs]], t)

    def seal(self, rows: TensorDictRows) -> None:
        """All steps are written."""
        rows.settle()


def blank_step(spec: TensorDictSpec, acted: TensorDictBase) -> TensorDictBase:
    """A step of zeros: what a policy has written into a first observation, with what a step adds to it."""
    blank = spec.host.imagine().to(acted.device) if acted.device is not None else spec.host.imagine().clear_device_()
    return _zero(blank.update(acted))


def drop_private(batch: Any) -> None:
    """Delete entries whose key has a part that begins with an underscore."""
    if not isinstance(batch, TensorDictBase):
        return
    for key in [key for key in batch.keys(include_nested=True) if is_private(key)]:
        if key in batch.keys(include_nested=True):
            del batch[key]


def _filled(td: TensorDictBase, entries: Mapping[Key, Any]) -> TensorDictBase:
    for key, value in entries.items():
        td.set(key, value)
    return td


def _zero(td: TensorDictBase) -> Any:
    return td.apply(torch.zeros_like, filter_empty=False)
