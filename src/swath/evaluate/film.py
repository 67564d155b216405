"""Films of the first episodes of an evaluation, frame by frame, held in memory up to a bound."""

from __future__ import annotations

from typing import Any

import numpy as np

from swath.evaluate.runner import Scene
from swath.options import count
from swath.rollout.loop import Step
from swath.rollout.spaces import Array


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
