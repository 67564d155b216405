"""Rows that were collected and not handed out yet, per env; and which of them go next.

env 0  ▇▇▇▇▇▇ ▇▇      stretches of blocks, oldest first
env 1  ▇▇▇▇▇▇         F rows are a fragment
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from swath.rollout_workers.sampling.block import Block


@dataclass
class Run:
    """Rows of one env of a block, one behind the other.

    Attributes:
        block: which has them.
        env: whose they are.
        start: the first step.
        stop: the one behind the last.
    """

    block: Block
    env: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def split(self, n_rows: int) -> Run:
        """The first rows, which are then no longer part of this run."""
        head = Run(self.block, self.env, self.start, self.start + n_rows)
        self.start = head.stop
        return head


class Waiting:
    """The rows of B envs that wait.

    Args:
        num_envs: B.
    """

    def __init__(self, num_envs: int) -> None:
        self._runs: list[deque[Run]] = [deque() for _ in range(num_envs)]
        self.rows = [0] * num_envs
        self.finished = [0] * num_envs
        self._served = [0] * num_envs

    def __bool__(self) -> bool:
        return any(self.rows)

    def __iter__(self) -> Iterator[Run]:
        return (run for runs in self._runs for run in runs)

    def add(self, block: Block) -> None:
        """The rows of a block wait, too."""
        ends = block.ends()
        last = np.where(ends.any(axis=1), ends.shape[1] - np.argmax(ends[:, ::-1], axis=1), 0).tolist()
        for env, start, stop in block.stretches():
            if last[env] > start:
                self.finished[env] = self.rows[env] + min(last[env], stop) - start
            self._runs[env].append(Run(block, env, start, stop))
            self.rows[env] += stop - start

    def missing(self, n_fragments: int, length: int) -> int:
        """How many steps are needed until so many fragments wait, if every env makes a row with each."""
        if n_fragments <= len(self.rows) and not any(self.rows):
            return length
        there = sum(rows // length for rows in self.rows)
        if there >= n_fragments:
            return 0
        arrivals = sorted(
            k * length - rows for rows in self.rows for k in range(rows // length + 1, rows // length + 1 + n_fragments)
        )
        return arrivals[n_fragments - there - 1]

    def take_fragments(self, n_fragments: int, length: int) -> list[Run]:
        """So many fragments: those of envs that were served least often, by env; there must be as many."""
        chosen = [0] * len(self.rows)
        for _ in range(n_fragments):
            able = [env for env, rows in enumerate(self.rows) if rows - chosen[env] * length >= length]
            env = min(able, key=lambda env: self._served[env])
            chosen[env] += 1
            self._served[env] += 1
        return [run for env, n in enumerate(chosen) if n for run in self._take(env, n * length)]

    def take_finished(self) -> list[Run]:
        """All rows of episodes that are over, by env."""
        return [run for env, rows in enumerate(self.finished) if rows for run in self._take(env, rows)]

    def drop_last(self, env: int, trajectory: int) -> int:
        """Forget the rows of this episode, if they are an env's latest; how many they were."""
        dropped, runs = 0, self._runs[env]
        while runs:
            run = runs[-1]
            ids = run.block.ids[env, run.start : run.stop]
            n = int((ids == trajectory).sum())
            dropped += n
            run.stop -= n
            if run.stop > run.start:
                break
            runs.pop()
        self.rows[env] -= dropped
        return dropped

    def drop_open(self, env: int) -> int:
        """Forget the rows of an env's episode that is not over; how many they were."""
        n = self.rows[env] - self.finished[env]
        left = n
        while left:
            run = self._runs[env][-1]
            gone = min(left, len(run))
            run.stop -= gone
            left -= gone
            if not len(run):
                self._runs[env].pop()
        self.rows[env] -= n
        return n

    def cut_last(self, env: int) -> None:
        """An env's episode ended, truncated, with its latest row, if that is here."""
        if self._runs[env]:
            run = self._runs[env][-1]
            run.block.cut(env, run.stop - 1)

    def _take(self, env: int, n_rows: int) -> list[Run]:
        runs, taken = self._runs[env], list[Run]()
        self.rows[env] -= n_rows
        self.finished[env] = max(0, self.finished[env] - n_rows)
        while n_rows:
            if len(runs[0]) > n_rows:
                taken.append(runs[0].split(n_rows))
                break
            taken.append(runs.popleft())
            n_rows -= len(taken[-1])
        return taken
