"""What is kept of an evaluation beside its numbers: steps, as a collector keeps them, and frames.

worker:   Step ──▶ rows of fragments, under the numbers of their episodes ──▶ batches
service:  those of all workers and rounds ──▶ in order of episodes ──▶ padded [N, T_max] | cat [ΣT]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from swath import keys
from swath.evaluation.runner import Runner
from swath.options import TrajFormat
from swath.report.video import as_rgb
from swath.rollout.buffer import Buffer, TensorDictBuffer
from swath.rollout.episodes.reshape import split_trajectories
from swath.rollout.episodes.statistics import NO_TRAJECTORY
from swath.rollout.fragment import Fragment, Layout
from swath.rollout.hosts.base import TensorDictSpec, fps_of
from swath.rollout.loop import Step
from swath.rollout.spaces import Array

PORTION = 128  # how many steps are written into one piece of memory


class Recording:
    """Keeps every step of every episode that is played here; trajectory ids are the numbers of episodes.

    Args:
        version: of the weights that act.
    """

    def __init__(self, version: int) -> None:
        self._version, self._made = version, 0
        self._last: Step | None = None
        self._batches: list[TensorDictBase] = []
        self._layout: Layout | None = None
        self._buffer: Any = None
        self._rows: Any = None

    def __call__(self, step: Step, slot: int, runner: Runner) -> None:  # noqa: ARG002  all slots are written at once
        """Keep the step, if it was not kept for an earlier slot."""
        if step is self._last:
            return
        self._last, spec = step, runner.host.spec
        if self._layout is None and runner.policy is not None:
            if is_open := isinstance(spec, TensorDictSpec):
                self._buffer = TensorDictBuffer(spec, step.outputs[0], PORTION)
            else:
                self._buffer = Buffer(step.observation, step.outputs, PORTION)
            self._layout = Layout(spec.batch_shape, spec.observed, runner.policy.keys, masked=True, open=is_open)
            self._truncates = spec.truncates
        if self._rows is None:
            self._rows, self._made = self._buffer.open(), 0
            self._ids = np.full((spec.num_envs, PORTION), NO_TRAJECTORY, dtype=np.int64)
        playing = [None if env in step.void else episode for env, episode in enumerate(runner.playing)]
        idle = [env for env, episode in enumerate(playing) if episode is None]
        self._buffer.write(self._rows, self._made, replace(step, void=idle))
        self._ids[:, self._made] = [NO_TRAJECTORY if episode is None else episode for episode in playing]
        self._made += 1
        if self._made == PORTION:
            self._seal()

    def taken(self) -> list[TensorDictBase]:
        """Batches with all steps since the last call, in the order of time."""
        if self._rows is not None:
            self._seal()
        batches, self._batches = self._batches, []
        return batches

    def _seal(self) -> None:
        assert self._layout is not None
        rows, self._rows = self._rows, None
        self._buffer.seal(rows)
        if self._made < PORTION:
            rows.blank_from(self._made)
        batch = Fragment(rows, self._ids, None, self._version).to_tensordict(self._layout)
        if not self._truncates:  # the env has no flag for what the evaluation cuts
            done = batch.get((keys.NEXT, keys.DONE))
            batch.set((keys.NEXT, keys.TRUNCATED), torch.from_numpy(rows.truncated).reshape(done.shape).to(done.device))
            batch.set(keys.TRUNCATED, torch.zeros_like(done))
        self._batches.append(batch[batch[keys.MASK]].exclude(keys.MASK))


def joined(batches: Iterable[TensorDictBase], layout: TrajFormat) -> TensorDictBase:
    """The episodes in these batches, in order: padded `[N, T_max]` with a mask, or `"cat"` `[ΣT]`.

    Args:
        batches: steps of episodes, those of each in the order of time.
        layout: `"padded"` or `"cat"`.
    """
    steps: TensorDictBase = torch.cat([*batches])
    steps = steps[steps[keys.TRAJ_IDS].argsort(stable=True)]
    steps.names = [keys.TIME]
    return split_trajectories(steps) if layout == "padded" else steps


class Film:
    """Renders after each step of episodes 0 … k-1.

    Args:
        episodes: k, how many episodes to film.
        max_bytes: frames held at most; beyond it filming stops and the evaluation goes on.

    Attributes:
        takes: frames `[H, W, 3]` uint8 by episode, one after each step.
        truncated: whether filming stopped for want of memory.
        fps: frames per second at which the env wants to be seen; 0 if it does not say.
    """

    def __init__(self, episodes: int = 0, max_bytes: int = 0) -> None:
        self.takes: dict[int, list[Array]] = {}
        self._episodes, self._free = episodes, max_bytes
        self.truncated, self.fps = False, 0.0

    def __call__(self, step: Step, slot: int, runner: Runner) -> None:  # noqa: ARG002
        """Film this slot, if its episode is among the first.

        Raises:
            ValueError: the env does not render frames.
        """
        episode = runner.playing[slot]
        if episode is None or episode >= self._episodes or self.truncated:
            return
        drawn = runner.host.render(slot)
        if drawn is None:
            raise ValueError(f"{runner.host.env} gives no frames to film; build it with render_mode='rgb_array'")
        frame = as_rgb(drawn).copy()
        self._free -= frame.nbytes
        if self._free < 0:
            self.truncated = True
        else:
            self.fps = fps_of(runner.host.env) or 0.0
            self.takes.setdefault(episode, []).append(frame)
