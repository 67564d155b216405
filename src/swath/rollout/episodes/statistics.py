"""Episode statistics: running sums of B envs, what came of the episodes that ended, means over the last hundred.

step by step           begin(envs), count_step(rewards)  ──▶ returns, lengths of the running episodes
fragment by fragment   count_fragment(rewards, labels)   ──▶ EndedEpisodes: those that end in it, in order of their ends
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from swath.rollout.spaces import Array

REMEMBERED = 100

EpisodeArray: TypeAlias = NDArray[np.void]
"""Episodes that ended, in order of their ends: an array `[n]` with these fields."""

EPISODE = np.dtype([("trajectory", np.int64), ("total", np.float64), ("length", np.int64)])
NO_EPISODES: EpisodeArray = np.empty(0, EPISODE)


def joined(parts: Iterable[EpisodeArray]) -> EpisodeArray:
    """Those of several fragments, one fragment after another."""
    some = [part for part in parts if len(part)]
    return np.concatenate(some) if some else NO_EPISODES


def unpacked(packed: bytes) -> EpisodeArray:
    """What `episodes.tobytes()` was made of: bytes travel in a fortieth of the time that an array takes."""
    return np.frombuffer(packed, EPISODE)


class EndedEpisodes(NamedTuple):
    """The n episodes that end in a fragment, by step, then env.

    Attributes:
        envs: int64 `[n]`.
        steps: int64 `[n]`, the step of the fragment with which they end.
        returns: float64 `[K, n]`.
        lengths: int64 `[n]`.
    """

    envs: Array
    steps: Array
    returns: Array
    lengths: Array

    def under(self, ids: Array) -> EpisodeArray:
        """The same by the trajectory ids `[B, T]` of the fragment, with the first kind of return."""
        episodes = np.empty(len(self.envs), EPISODE)
        episodes["trajectory"] = ids[self.envs, self.steps]
        episodes["total"], episodes["length"] = self.returns[0], self.lengths
        return episodes


class EpisodeSums:
    """The running episodes of B envs, by array functions; fed either step by step or fragment by fragment.

    Args:
        num_envs: B.
        kinds: K, how many kinds of reward are summed, such as those before and after clipping.

    Attributes:
        returns: float64 `[K, B]`, the rewards so far.
        lengths: int64 `[B]`, the steps so far; fragments bring counts of their own.
    """

    def __init__(self, num_envs: int, kinds: int = 1) -> None:
        self.returns = np.zeros((kinds, num_envs))
        self.lengths = np.zeros(num_envs, dtype=np.int64)

    def begin(self, envs: Sequence[int] | Array) -> None:
        """Episodes begin in these envs."""
        self.returns[:, envs] = 0
        self.lengths[envs] = 0

    def count_step(self, *rewards: Array, void: Sequence[int] = ()) -> None:
        """Count a step of every env, but of those whose row is void; K rewards `[B]`."""
        made: Array | bool = True
        if len(void):
            made = np.ones(len(self.lengths), dtype=np.bool_)
            made[list(void)] = False
        self.lengths += made
        with np.errstate(invalid="ignore"):
            for total, reward in zip(self.returns, rewards, strict=True):
                np.add(total, reward, out=total, where=made)

    def count_fragment(self, *rewards: Array, counts: Array, last: Array, valid: Array | None = None) -> EndedEpisodes:
        """Take in the next fragment. An episode that another one follows without an end was given up.

        Args:
            rewards: K of them, `[B, T]`.
            counts: int64 `[B, T]`, how many steps of the episode came before the row: at 0 one begins.
            last: bool `[B, T]`: the row ends its episode.
            valid: bool `[B, T]`: the row is a transition; `None` if all are.
        """
        begins, ends = counts == 0, last
        values = np.array(rewards, dtype=np.float64)
        if valid is not None:
            begins, ends = begins & valid, ends & valid
            values[:, ~valid] = 0
        continued = np.flatnonzero(~begins[:, 0])
        values[:, continued, 0] += self.returns[:, continued]
        begins[:, 0] = True
        starts, at = np.flatnonzero(begins), np.flatnonzero(ends)
        sums = np.add.reduceat(values.reshape(len(rewards), -1), starts, axis=1)
        self.returns = sums[:, np.cumsum(np.count_nonzero(begins, axis=1)) - 1]
        envs, steps = np.divmod(at, counts.shape[1])
        order = np.argsort(steps * len(counts) + envs)
        returns = sums[:, np.searchsorted(starts, at, side="right") - 1]
        return EndedEpisodes(envs[order], steps[order], returns[:, order], counts.reshape(-1)[at[order]] + 1)


class EpisodeLog:
    """Episodes that ended: how many, and means over the last 100."""

    def __init__(self) -> None:
        self.finished = 0
        self._last = NO_EPISODES

    @property
    def mean_return(self) -> float | None:
        """Mean over the last 100 episodes; `None` before the first."""
        return float(last["total"].mean()) if len(last := self._last) else None

    @property
    def mean_length(self) -> float | None:
        """Mean steps of the last 100 episodes; `None` before the first."""
        return float(last["length"].mean()) if len(last := self._last) else None

    def add(self, episodes: EpisodeArray) -> None:
        """These have ended, one after another."""
        if len(episodes):
            self._last = np.concatenate([self._last, episodes[-REMEMBERED:]])[-REMEMBERED:]
            self.finished += len(episodes)
