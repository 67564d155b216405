"""Whether batches of counting envs are whole: every frame of a life once, in order, to the end of its last fragment.

batches [*, B, T] ─▶ per life of a worker [B, ΣT] ─▶ each step follows the one before, or begins the next episode
"""

from __future__ import annotations

from typing import Any

import numpy as np

from chaos_toys import COUNTING
from swath.keys import DONE, NEXT, TRAJ_IDS
from swath.testing import by_life, marks_of
from swath.testing.checks import life_of, per_frame


class Ledger:
    """Keeps batches, and checks them when the clock has stopped.

    Args:
        order: `"sync"` batches have a row of every worker.
    """

    def __init__(self, order: str) -> None:
        self._order = order
        self._batches: list[Any] = []
        self._shape: Any = None

    @property
    def frames(self) -> int:
        """That are in the batches."""
        return sum(batch.numel() for batch in self._batches)

    def add(self, batch: Any) -> None:
        """One more."""
        self._batches.append(batch)

    def check(self) -> None:
        """Raise an `AssertionError` that says what is not as it should be."""
        for batch in self._batches:
            self._check_shape(batch)
        for life, rows in by_life(self._batches).items():
            check_life(life, rows, self._batches[0].shape[-1])

    def _check_shape(self, batch: Any) -> None:
        """All are of one size, each row is of one life, and a row of a synchronous batch is its worker's."""
        assert batch.shape == self._batches[0].shape, f"a batch has the shape {tuple(batch.shape)}"
        ids = per_frame(batch, TRAJ_IDS)
        lives = ids >> 32
        assert (lives == lives[..., :1]).all(), "a fragment has frames of two lives"
        if self._order == "sync":
            workers = [life_of(int(row.flat[0]))[0] for row in ids]
            assert workers == list(range(len(ids))), f"rows are of the workers {workers}"


def check_life(life: tuple[int, int], rows: Any, steps: int) -> None:
    """One life's frames `[B, ΣT]`: from a reset on, without a gap, ends marked as ends.

    Where an env raised at the first of a fragment's `steps`, the row before is in a fragment that was delivered without
    a mark; the next episode has another id.
    """
    before, after = marks_of(rows, COUNTING), marks_of(rows, COUNTING, following=True)
    done = per_frame(rows, (NEXT, DONE))
    assert (before[:, 0, 2] == 0).all(), f"{life} begins with {before[:, 0].tolist()}"
    assert (after == before + np.array([0, 0, 1])).all(), f"a step of {life} does not lead to the next"
    begun = before[:, :-1] + np.array([0, 1, 0])
    begun[..., 2] = 0
    ids = per_frame(rows, TRAJ_IDS)
    ended = done[:, :-1] | ((ids[:, 1:] != ids[:, :-1]) & (np.arange(1, ids.shape[1]) % steps == 0))
    wanted = np.where(ended[..., None], begun, after[:, :-1])
    wrong = np.argwhere((before[:, 1:] != wanted).any(-1))
    assert not len(wrong), f"{life}: env and step {wrong[0].tolist()} does not follow the one before"
