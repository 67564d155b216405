"""Slots, each of which is an agent in an env; and transitions, each of which is what its slot's record was at its end.

A record refers to rows of what its policy has seen and answered: the observation of the moment, the one acted on, and
the one acted on before. So a transition is a few numbers, and k of them are appended at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from swath.rollout.spaces import Array

if TYPE_CHECKING:
    from swath.rollout_workers.episode import Episode

NONE = -1
"""In the place of a row or a policy: there is none."""

SLOT = np.dtype(
    [
        ("env", np.int64),
        ("episode", np.int64),  # trajectory id
        ("agent", np.int64),  # place in the order of appearance
        ("policy", np.int64),  # number of its `PolicyRows`; NONE where the slot is free
        ("clock", np.int64),  # steps that the env had made, without discarded ones
        ("t", np.int64),  # steps of the episode
        ("step", np.int64),  # number of the step or reset in which the agent was last seen
        ("row", np.int64),  # its latest observation; of a transition: the one that it led to
        ("acted", np.int64),  # the observation that it acted on, if nothing came of it yet
        ("before", np.int64),  # the one that it acted on in the transition before
        ("version", np.int64),  # of the weights that acted
        ("count", np.int64),  # transitions of the agent in the episode
        ("unpaid", np.float64),  # rewards that are still to become part of a transition
        ("total", np.float64),  # sum of rewards after clipping
        ("raw", np.float64),  # the same before
        ("reward", np.float32),  # after clipping
        ("paid", np.float32),  # that of the transition before
        ("terminated", np.bool_),
        ("truncated", np.bool_),
        ("over", np.bool_),  # the agent neither acts nor is looked at any more
    ],
    align=True,
)


_BEGUN = tuple(NONE if name in ("row", "acted", "before") else 0 for name in (SLOT.names or ())[4:])
"""The record of an agent that begins to act, behind the four fields that say who it is."""


class Slots:
    """The agents of N envs that act now, and how far the envs are.

    Args:
        num_envs: N.

    Attributes:
        table: one record per slot.
        agents: their ids.
        episodes: the running one of each env.
        lengths: int64 `[N]`, steps of those.
        steps: made by all envs together, and resets of envs of many agents.
        infos: by the number of the step, what the envs said with it.
        said: what an env said last to each agent of the running episode.
        info_of: what an env said to an agent with its latest observation.
        watched: whether episodes may be looked at when others have begun.
        waiting: how many env steps, and how many transitions, of an episode were not handed out yet.
    """

    said: Callable[[int], Mapping[Any, Mapping[str, Any]]]
    info_of: Callable[[int, Any], Mapping[str, Any]]
    waiting: Callable[[int, int], tuple[int, int]]

    def __init__(self, num_envs: int) -> None:
        self.table = np.zeros(num_envs, SLOT)
        self.table["policy"] = NONE
        self.agents: list[Any] = [None] * num_envs
        self.episodes: list[Episode | None] = [None] * num_envs
        self.lengths = np.zeros(num_envs, np.int64)
        self.steps = 0
        self.watched = True
        self.infos: dict[int, Any] = {}
        self._free = list(range(num_envs))[::-1]

    def begin(self, env: int, episode: Episode) -> None:
        """An episode is about to begin."""
        before = self.episodes[env]
        if before is not None:
            self.leave(before.keep() if self.watched else [*before.slots.values()])
        self.episodes[env] = episode
        self.lengths[env] = 0

    def leave(self, slots: Sequence[int]) -> None:
        """These slots are free."""
        self.table["policy"][slots] = NONE
        self._free += list(slots)[::-1]

    def take(self, episode: Episode, agent: Any, policy: int) -> int:
        """A slot for an agent that has just appeared."""
        if not self._free:
            n = len(self.table)
            self.table = np.concatenate([self.table, np.zeros(n, SLOT)])
            self.table["policy"][n:] = NONE
            self.agents += [None] * n
            self._free = list(range(n, 2 * n))[::-1]
        slot = self._free.pop()
        self.table[slot] = (episode.env_id, episode.episode_id, episode.agent_index(agent), policy, *_BEGUN)
        self.agents[slot] = agent
        episode.slots[agent] = slot
        return slot


class Transitions:
    """Transitions that were not handed out yet, in the order in which they ended."""

    def __init__(self) -> None:
        self._room = np.zeros(1024, SLOT)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def table(self) -> Array:
        """One record each; to be written into, too."""
        return self._room[: self._count]

    def append(self, records: Array) -> None:
        """Add some."""
        stop = self._count + len(records)
        if stop > len(self._room):
            self._room = np.concatenate([self._room, np.zeros(max(stop, len(self._room)), SLOT)])
        words(self._room[self._count : stop])[:] = words(records)
        self._count = stop

    def take(self, which: Array) -> Array:
        """Take those out for which this bool array `[n]` is true."""
        taken, left = records_at(self.table, np.flatnonzero(which)), records_at(self.table, np.flatnonzero(~which))
        self._count = 0
        self.append(left)
        return taken


def words(records: Array) -> Array:
    """The memory of records, int64 `[n, words]`: NumPy copies it in a tenth of the time that records take."""
    return records.view(np.int64).reshape(len(records), SLOT.itemsize // 8)


def records_at(records: Array, index: Array) -> Array:
    """Copies of records."""
    return words(records).take(index, axis=0).view(SLOT).reshape(len(index))
