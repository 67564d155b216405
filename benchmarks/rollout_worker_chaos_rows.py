"""Rows of a `WorkerSet` whose envs count: whole fragments, every frame once, in order, true to its env and its action.

batches ─▶ Rows: a column per fact ─▶ per life, by env, episode and step ─▶ each row follows from the one before
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from chaos_toys import ENVS
from rollout_worker_chaos_toys import VERSIONS
from swath.testing import reward_of
from swath.testing.checks import life_of

KEPT = ("obs", "new_obs", "actions", "rewards", "terminateds", "truncateds", "eps_id", "policy_version")


@dataclass(frozen=True)
class Rows:
    """Rows `[n]` of all policies, sorted by env, episode and step.

    Attributes:
        policy: whose.
        batch: in which they came.
        mark: `[n, 3]`, what was observed.
        after: `[n, 3]`, and next.
        seen: what the filter had seen.
        action: taken.
        reward: got.
        ended: `[n, 2]`, terminated and truncated.
        episode: the id.
        version: of the weights.
    """

    policy: Any
    batch: Any
    mark: Any
    after: Any
    seen: Any
    action: Any
    reward: Any
    ended: Any
    episode: Any
    version: Any

    @classmethod
    def of(cls, parts: Iterable[tuple[str, int, dict[str, Any]]]) -> Rows:
        """All rows, in the order of their arrival."""
        ids, batches, kept = zip(*parts, strict=True)
        sizes = [len(each["actions"]) for each in kept]
        joined = {name: np.concatenate([each[name] for each in kept]) for name in KEPT}
        return cls(
            policy=np.repeat(np.array(ids, dtype=object), sizes),
            batch=np.repeat(batches, sizes),
            mark=joined["obs"][:, :3].astype(np.int64),
            after=joined["new_obs"][:, :3].astype(np.int64),
            seen=joined["obs"][:, 3],
            action=joined["actions"],
            reward=joined["rewards"],
            ended=np.stack([joined["terminateds"], joined["truncateds"]], axis=-1),
            episode=joined["eps_id"],
            version=joined["policy_version"],
        )

    def __len__(self) -> int:
        return len(self.version)

    def __getitem__(self, which: Any) -> Rows:
        return Rows(**{name: column[which] for name, column in vars(self).items()})

    def by_life(self) -> Iterator[tuple[tuple[int, int], Rows]]:
        """The rows of each life of each worker, by env, episode and step."""
        lives = np.array([life_of(episode) for episode in self.episode.tolist()])
        for life in np.unique(lives, axis=0):
            own = self[(lives == life).all(axis=1)]
            yield tuple(life.tolist()), own[np.lexsort(own.mark.T[::-1])]


def check_frames(life: tuple[int, int], rows: Rows) -> None:
    """Each env from its first reset on, every frame once, in the order of their making, with its own data."""
    mark, following = rows.mark, np.diff(rows.mark[:, 0], prepend=-1) == 0
    wanted = [life[0] * ENVS + number for number in range(ENVS)]
    assert np.unique(mark[:, 0]).tolist() == wanted, f"{life} has the envs {np.unique(mark[:, 0])}"
    assert (mark[~following, 1:] == 0).all(), f"{life} does not begin with first frames: {mark[~following].tolist()}"
    before = np.flatnonzero(following) - 1
    begun = mark[before] * [1, 1, 0] + [0, 1, 0]
    expected = np.where(rows.ended[before].any(axis=1)[:, None], begun, rows.after[before])
    wrong = np.flatnonzero((mark[before + 1] != expected).any(axis=1))
    assert not len(wrong), f"{life}: {mark[before + 1][wrong[0]]} is there, not {expected[wrong[0]]}"
    assert (np.diff(rows.batch)[before] >= 0).all(), f"{life}: a frame came before the one that it follows"
    assert (rows.after == mark + np.array([0, 0, 1])).all(), f"a step of {life} does not lead to the next"
    check_rewards(life, rows)
    check_ends(life, rows)


def check_rewards(life: tuple[int, int], rows: Rows) -> None:
    """Each is of its step and its action, as the env got it."""
    actions, which = np.unique(rows.action, return_inverse=True)
    said = np.array([reward_of((0, 0, 0), [np.int64(action)]) for action in actions])[which]
    wrong = np.flatnonzero((rows.after @ [31, 7, 1] + 8 * said) % 1024 / 8 != rows.reward)
    assert not len(wrong), f"{life}: the reward at {rows.mark[wrong[0]]} is of another step or action"


def check_ends(life: tuple[int, int], rows: Rows) -> None:
    """They are where they were planned, and as they were; the last agent's may be truncated with the episode."""
    episodes, which = np.unique(rows.mark[:, :2], axis=0, return_inverse=True)
    plans = [VERSIONS.script.plan(*episode, None) for episode in episodes.tolist()]
    last = np.array([plan.length for plan in plans])[which] == rows.after[:, 2]
    planned = np.array([plan.flags for plan in plans])[which] & last[:, None]
    also = rows.ended & ~planned
    also[:, 1] &= ~planned.any(axis=1)
    wrong = np.flatnonzero((planned & ~rows.ended).any(axis=1) | also.any(axis=1))
    assert not len(wrong), f"{life}: {rows.mark[wrong[0]]} is marked with {rows.ended[wrong[0]]}"


def check_fragments(life: tuple[int, int], rows: Rows, steps: int, agents: int) -> None:
    """Each batch has whole fragments of a life: as many steps of each sub-env, a multiple of a fragment's."""
    env = (rows.mark[:, 0] - life[0] * ENVS) // agents
    made = np.unique(np.stack([rows.batch, env, rows.episode, rows.mark[:, 2]]), axis=1)
    shares, sizes = np.unique(made[:2], axis=1, return_counts=True)
    broken = np.flatnonzero(sizes % steps)
    assert not len(broken), f"batch {shares[0, broken[0]]} has {sizes[broken[0]]} steps of a sub-env of {life}"
    sizes_of = {batch: sizes[shares[0] == batch] for batch in np.unique(shares[0])}
    assert all(len(set(each)) == 1 and len(each) == ENVS // agents for each in sizes_of.values()), (
        f"sub-envs of {life} have fragments of different lengths"
    )
