"""Where the steps of TensorDict envs are kept.

    Step t ──▶ tape           the TensorDict that policy and env wrote into
           ──▶ sparse marks   for ends, cuts
    seal   ──▶ one TensorDict [*B, T]

Some envs and policies write each step into the same memory. The first steps are kept as copies and looked at: entries
that two of them share are copied from then on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, TensorDictBase, is_non_tensor, is_tensor_collection

from swath.keys import DONE, NEXT, TERMINATED, TIME, TRUNCATED, Key, as_key, as_tuple, under_next
from swath.rollout.hosts.specs import TensorDictSpec
from swath.rollout.loop import Step
from swath.rollout.spaces import Array
from swath.rollout.tape import Tape

WATCHED = 3
"""How many steps are looked at for memory that is used again."""


@dataclass(slots=True)
class TensorDictRows:
    """T steps of B envs as one TensorDict `[*B, T]`.

    Attributes:
        spec: the envs.
        template: a step of zeros, `[*B]`.
        tape: where the steps are recorded.
        terminated: bool `[B, T]`.
        truncated: bool `[B, T]`.
        valid: bool `[B, T]`: the row is a transition; `None` if all are.
        restarted: envs that failed before the first row, so that an episode of the fragment before was given up.
        stacked: all steps; there once the rows are sealed.
    """

    spec: TensorDictSpec
    template: TensorDictBase
    tape: Tape
    terminated: Array
    truncated: Array
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
        self.stacked = _named(self.tape)
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
        self._watched: list[TensorDictBase] = []
        self._shared: list[Key] | None = None
        self._cuts: list[tuple[int, int]] = []

    def open(self) -> TensorDictRows:
        """Rows for one fragment."""
        shape = (self._spec.num_envs, self.n_steps)
        flags = (np.zeros(shape, dtype=np.bool_), np.zeros(shape, dtype=np.bool_))
        self._cuts = []
        tape = Tape(self.n_steps, len(self._spec.batch_shape))
        return TensorDictRows(self._spec, self._template, tape, *flags)

    def write(self, rows: TensorDictRows, t: int, step: Step) -> None:
        """Keep step `t`."""
        made = step.outputs[0]
        rows.tape.record(self._kept(made))
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

    def _kept(self, made: TensorDictBase) -> TensorDictBase:
        """A step that nobody writes into again."""
        if self._shared is None:
            kept: TensorDictBase = made.clone()
            self._watched.append(made)
            if len(self._watched) == WATCHED:
                passed_on = (*self._spec.observed, *self._spec.carried)
                shared = shared_entries(self._watched, passed_on)
                self._shared = [*shared, *(key for key in passed_on if under_next(key) in shared)]
                self._watched = []
            return kept
        for key in self._shared:
            made.set(key, made.get(key).clone())
        return made

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
    tape = Tape(len(steps), len(spec.batch_shape))
    for step in steps:
        tape.record(step)
    return _named(tape)


def _named(tape: Tape) -> Any:
    stacked = tape.stacked()
    stacked.refine_names(..., TIME)
    return stacked.clear_device_()


def shared_entries(steps: Sequence[TensorDictBase], passed_on: Sequence[Key]) -> list[Key]:
    """Entries that are in the same memory in two of these steps, though each step has written them.

    Args:
        steps: steps one after another, as they were made.
        passed_on: root entries that a step hands to the next, which does not write them.
    """
    flags = {DONE, TERMINATED, TRUNCATED}
    places = [{key: place for key, place in _places(td) if key not in passed_on} for td in steps]
    return [
        key
        for key in places[0]
        if (as_tuple(key)[0] == NEXT or as_tuple(key)[-1] not in flags)
        and len({place.get(key) for place in places}) < len(places)
    ]


def entries_of(td: TensorDictBase, keys: Sequence[Key]) -> Iterator[torch.Tensor]:
    """These entries, without those that are no one tensor because their shapes differ between agents or steps."""
    for key in keys:
        try:
            yield td.get(key)
        except RuntimeError:
            continue


def _places(td: TensorDictBase, above: tuple[str, ...] = ()) -> Iterator[tuple[Key, tuple[int, ...]]]:
    """Where the entries of a step are in memory; a lazy stack is one entry, in several places."""
    for name, value in td.items():
        path = (*above, name)
        if is_non_tensor(value):
            continue
        if isinstance(value, LazyStackedTensorDict):
            yield as_key(path), tuple(place for one in value.tensordicts for _, at in _places(one) for place in at)
        elif is_tensor_collection(value):
            yield from _places(value, path)
        elif value.numel():
            yield as_key(path), (value.data_ptr(),)
