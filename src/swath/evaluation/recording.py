"""What is kept of an evaluation beside its numbers: steps, as a collector keeps them, and frames.

worker:   Step ──▶ rows of a fragment, under the numbers of their episodes ──▶ assembler ──▶ whole episodes, flat
service:  those of all workers and rounds ──▶ in order ──▶ padded [N, T_max] | cat [ΣT]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from swath.evaluation.runner import Scene
from swath.keys import NEXT, TRAJ_IDS, TRUNCATED, as_tuple, under_next
from swath.options import TrajFormat, count
from swath.rollout.buffer import Buffer
from swath.rollout.episodes.assemble import EpisodeAssembler
from swath.rollout.episodes.ids import NO_TRAJECTORY
from swath.rollout.episodes.reshape import Frames, Piece, join
from swath.rollout.fragment import Fragment, Layout
from swath.rollout.hosts.base import HostSpec, TensorDictSpec
from swath.rollout.hosts.tensordict import groups_of
from swath.rollout.loop import Step
from swath.rollout.spaces import Array
from swath.rollout.tensordicts import TensorDictBuffer, TensorDictRows

PORTION = 128
"""How many steps are written into one piece of memory."""


class Recording:
    """Keeps every step of every episode that is played here; trajectory ids are the numbers of episodes.

    Args:
        version: of the weights that act.
    """

    def __init__(self, version: int) -> None:
        self._version = version
        self._assembler = EpisodeAssembler()
        self._playing: dict[int, int] = {}
        self._step: Step | None = None
        self._buffer: Any = None
        self._rows: Any = None
        self._made = 0

    def saw(self, step: Step, slot: int, scene: Scene) -> None:
        """This slot made a step of an episode."""
        episode = scene.playing[slot]
        assert episode is not None
        self._step, self._playing[slot] = step, episode

    def stepped(self, scene: Scene) -> None:
        """Keep the step of all slots."""
        if self._step is None:
            return
        if self._rows is None:
            self._open(self._step, scene)
        n = scene.host.spec.num_envs
        idle = [slot for slot in range(n) if slot not in self._playing]
        self._buffer.write(self._rows, self._made, replace(self._step, void=idle))
        for slot, episode in self._playing.items():
            self._ids[slot, self._made] = episode
        self._made += 1
        self._step, self._playing = None, {}
        if self._made == PORTION:
            self._seal()

    def taken(self) -> TensorDict | None:
        """The episodes that are complete and were not taken before, one behind the other; `None` if there are none."""
        if self._rows is not None:
            self._seal()
        return self._assembler.take(self._assembler.ready, "cat") if self._assembler.ready else None

    def _open(self, step: Step, scene: Scene) -> None:
        spec = scene.host.spec
        if self._buffer is None:
            self._buffer = _buffer_for(spec, step)
            writes_all = isinstance(spec, TensorDictSpec)
            self._layout = Layout(spec.batch_shape, spec.observed, scene.policy.keys, masked=True, open=writes_all)
        self._rows, self._made = self._buffer.open(), 0
        self._ids = np.full((spec.num_envs, PORTION), NO_TRAJECTORY, dtype=np.int64)

    def _seal(self) -> None:
        rows, made = self._rows, self._made
        self._buffer.seal(rows)
        if made < PORTION:
            rows.blank_from(made)
        fragment = Fragment(rows, self._ids, np.zeros_like(self._ids), self._version)
        batch = fragment.to_tensordict(self._layout)
        if isinstance(rows, TensorDictRows):
            _show_cuts(batch, rows)
        self._assembler.add({0: batch})
        self._rows = None


def _buffer_for(spec: HostSpec, step: Step) -> Buffer | TensorDictBuffer:
    if isinstance(spec, TensorDictSpec):
        return TensorDictBuffer(spec, step.outputs[0], PORTION)
    return Buffer(step.observation, step.outputs, PORTION)


def _show_cuts(batch: TensorDictBase, rows: TensorDictRows) -> None:
    """Envs that know of no truncation get a flag for it beside their others: an evaluation may cut their episodes."""
    for group in groups_of(rows.spec.flags):
        if TRUNCATED in group:
            continue
        beside = next(iter(group.values()))
        *parents, _ = as_tuple(beside)
        like, cut = batch.get(under_next(beside)), torch.from_numpy(rows.truncated)
        ones = [1] * (like.ndim - batch.ndim)
        batch.set((NEXT, *parents, TRUNCATED), cut.reshape(*batch.shape, *ones).to(like.device).expand_as(like).clone())
        batch.set((*parents, TRUNCATED), torch.zeros_like(like))


def joined(takes: Iterable[TensorDictBase], layout: TrajFormat) -> TensorDict:
    """Whole episodes of several workers and rounds, in order: padded `[N, T_max]` with a mask, or `"cat"` `[ΣT]`.

    Args:
        takes: flat batches of whole episodes.
        layout: `"padded"` or `"cat"`.
    """
    episodes: dict[int, list[Piece]] = {}
    for take in takes:
        frames, first = Frames(take), 0
        numbers, lengths = take[TRAJ_IDS].unique_consecutive(return_counts=True)
        for number, length in zip(numbers.tolist(), lengths.tolist(), strict=True):
            episodes[number] = [Piece(frames, first, length)]
            first += length
    return join([episodes[number] for number in sorted(episodes)], layout)


# Frames


class Film:
    """Renders after each step of episodes 0 … k-1.

    Args:
        episodes: k, how many episodes to film.
        max_bytes: frames held at most; beyond it filming stops and the evaluation goes on.

    Attributes:
        truncated: whether filming stopped for want of memory.
    """

    def __init__(self, episodes: int = 1, max_bytes: int = 2**30) -> None:
        self._takes: list[list[Array]] = [[] for _ in range(count("episodes", episodes))]
        self._free = max_bytes
        self.truncated = False

    def saw(self, step: Step, slot: int, scene: Scene) -> None:  # noqa: ARG002
        """Film this slot, if its episode is among the first.

        Raises:
            ValueError: the env does not render frames.
        """
        episode = scene.playing[slot]
        if episode is None or episode >= len(self._takes) or self.truncated:
            return
        frame = as_frame(scene.host.render(slot), scene.host.env)
        self._free -= frame.nbytes
        if self._free < 0:
            self.truncated = True
        else:
            self._takes[episode].append(frame)

    def stepped(self, scene: Scene) -> None:
        """Nothing to do."""

    def takes(self) -> dict[int, Array]:
        """Each filmed episode, by number, as uint8 `[T, H, W, 3]`, T its steps; one without a frame is left out."""
        return {episode: np.stack(take) for episode, take in enumerate(self._takes) if take}


def as_frame(frame: Any, env: Any) -> Array:
    """One rendered frame as uint8 `[H, W, 3]` of its own memory: alpha dropped, grey repeated.

    Raises:
        ValueError: there is none, or it is no picture.
    """
    if frame is None:
        raise ValueError(f"{env} gives no frames to film; build it with render_mode='rgb_array'")
    picture = np.array(frame, dtype=np.uint8)
    if picture.ndim == 2:
        picture = picture[:, :, None]
    if picture.ndim != 3 or picture.shape[2] not in (1, 3, 4):
        raise ValueError(f"{env} renders arrays of shape {picture.shape}; a frame is (H, W), (H, W, 1), 3 or 4")
    return np.repeat(picture, 3, axis=2) if picture.shape[2] == 1 else picture[:, :, :3]
