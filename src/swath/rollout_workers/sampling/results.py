"""What came of the episodes that end within a block, by array functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from swath.rollout.spaces import Array
from swath.rollout_workers.sampling.block import Block


class Result(NamedTuple):
    """An episode that ended.

    Attributes:
        env: of which env.
        trajectory: its id.
        length: steps.
        reward: sum after clipping.
        raw_reward: sum as the env gave it.
    """

    env: int
    trajectory: int
    length: int
    reward: float
    raw_reward: float


class Results:
    """The sums of rewards of episodes that go on from block to block.

    Args:
        num_envs: B.
    """

    def __init__(self, num_envs: int) -> None:
        self._open = np.zeros((2, num_envs))

    def of(self, block: Block) -> list[Result]:
        """The episodes that end in the next block, in the order in which they do."""
        ends = block.ends()
        reward = self._sums(0, block, block.reward, ends)
        raw = self._sums(1, block, block.rows.reward, ends)
        steps, envs = np.nonzero(ends.T)
        if not len(envs):
            return []
        order = np.argsort(np.argsort(envs * ends.shape[1] + steps))
        columns = (envs, block.ids[envs, steps], block.counts[envs, steps] + 1, reward[order], raw[order])
        return [Result(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]

    def drop(self, env: int) -> None:
        """An env's episode is over, and nothing came of it."""
        self._open[:, env] = 0

    def _sums(self, kind: int, block: Block, rewards: Array, ends: Array) -> Array:
        """Sums of the episodes that end, by env and time; what is left open is kept."""
        _, n_steps = block.shape
        values = rewards.astype(np.float64)
        if block.rows.valid is not None:
            values[~block.rows.valid] = 0
        for env, t in block.failed:  # what was before is no part of any result
            begun = block.ids[env] == block.ids[env, t]
            if begun[0]:
                self._open[kind, env] = 0
            values[env, begun] = 0
        values[:, 0] += self._open[kind]
        flat = ends.reshape(-1)
        begins = np.flatnonzero(np.concatenate([[True], flat[:-1]]) | (np.arange(flat.size) % n_steps == 0))
        sums = np.add.reduceat(values.reshape(-1), begins)
        stops = np.append(begins[1:], flat.size) - 1
        over = flat[stops]
        self._open[kind] = 0
        left = np.flatnonzero((stops % n_steps == n_steps - 1) & ~over)
        self._open[kind, stops[left] // n_steps] = sums[left]
        return np.asarray(sums[over])


@dataclass
class SamplerCounts:
    """What a sampler has done.

    Attributes:
        env_steps: handed out.
        agent_steps: transitions that were handed out with them.
        discarded: env steps that were made, and will not be.
        episodes: that ended by themselves.
        faulty: that an env ended by raising, or that could not begin.
    """

    env_steps: int = 0
    agent_steps: int = 0
    discarded: int = 0
    episodes: int = 0
    faulty: int = 0
