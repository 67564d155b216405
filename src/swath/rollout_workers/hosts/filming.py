"""A host whose first sub-env is drawn after each step; pictures become a film."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from swath.report.video import VideoWriter
from swath.rollout.hosts.base import ArrayHost, Transition, first_of, fps_of
from swath.rollout.spaces import Leaves
from swath.rollout_workers.hosts.laps import Laps
from swath.rollout_workers.hosts.wrapping import WrappedHost


class FilmedHost(WrappedHost):
    """Draws sub-env 0 after each step; if that raises, the sub-env has failed.

    Args:
        inner: the envs.
        path: of the film; None: what envs draw is for their own windows.
        laps: times the steps.
    """

    def __init__(self, inner: ArrayHost, path: Path | None, laps: Laps) -> None:
        super().__init__(inner)
        self._laps = laps
        self._film = None if path is None else VideoWriter(path, fps_of(inner.env) or 30)

    def step(self, action: Leaves) -> Transition:
        """Advance every env, and draw the first."""
        moved = self.inner.step(action)
        self._laps.lap("env_wait")
        if not any(env == 0 for env, _ in moved.failed):
            self._draw(moved)
        self._laps.lap("env_render")
        return moved

    def close(self) -> None:
        """Finish the film, and close the envs."""
        try:
            if self._film is not None:
                self._film.close()
        finally:
            super().close()

    def _draw(self, moved: Transition) -> None:
        try:
            picture = first_of(self.inner.env).render()
        except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
            moved.failed = [(0, error), *moved.failed]
            return
        if self._film is not None and isinstance(picture, np.ndarray):
            self._film.write(picture)
