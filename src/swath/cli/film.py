"""Films of a policy: one episode, drawn off screen.

```
LocalEvaluation ──every step──▶ Camera ──frame──▶ VideoWriter ──▶ video.mp4
```
"""

from __future__ import annotations

import os
import sys
from contextlib import closing
from inspect import signature
from typing import TYPE_CHECKING, Any

from gymnasium.error import UnsupportedMode

from swath.cli.naming import maker_named
from swath.evaluate.film import as_frame
from swath.evaluate.local import LocalEvaluation
from swath.evaluate.request import EvalLimits, EvalRequest
from swath.evaluate.stopping import StopRule
from swath.report.video import VideoWriter
from swath.rollout.hosts.base import fps_of
from swath.rollout.hosts.sources import Source, build

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from swath.cli.config import RunConfig
    from swath.evaluate.watching import Scene
    from swath.rollout.loop import Step

MOST_FRAMES = 3000
"""Where a film ends if its episode does not."""

RENDER_MODE = "rgb_array"


class Camera:
    """A watcher that writes every frame of episode 0 to a film."""

    def __init__(self, film: VideoWriter) -> None:
        self._film = film

    def saw(self, step: Step, slot: int, scene: Scene) -> None:  # noqa: ARG002  a watcher's signature
        """Take a picture after the step."""
        self._film.write(as_frame(scene.host.render(slot), scene.host.env))

    def stepped(self, scene: Scene) -> None:
        """Nothing to do."""


def film_episode(config: RunConfig, policy: Any, path: Path) -> None:
    """Play episode 0 of the evaluation once more and write it as a film.

    Raises:
        ImportError: imageio-ffmpeg is not installed; the message names the extra.
        gymnasium.error.Error: the env cannot render, or misses a package for it.
    """
    _draw_off_screen()
    source = _drawing(config.env)
    request = EvalRequest(StopRule(1), EvalLimits(MOST_FRAMES), seed=config.seed)
    with closing(build(source)) as host:
        fps = fps_of(host.env) or 30
        with VideoWriter(path, fps) as film, LocalEvaluation(host.env) as evaluation:
            evaluation.run(policy, request, [Camera(film)])


def _drawing(name: str) -> Source:
    """What builds an env that draws; looked at beforehand, for `gymnasium.make` warns before it fails on the keyword.

    Raises:
        gymnasium.error.Error: there is no such thing.
    """
    maker = maker_named(name)
    with closing(build(Source(maker))) as host:
        if host.env.render_mode == RENDER_MODE:
            return Source(maker)
        modes = host.env.metadata.get("render_modes") or ()
    if RENDER_MODE not in modes:
        raise UnsupportedMode(
            f"{name} has no render mode {RENDER_MODE!r}; its metadata['render_modes'] are {list(modes)}"
        )
    if not (isinstance(maker, str) or _takes_mode(maker)):
        raise UnsupportedMode(f"{name} has no parameter render_mode; give it one, for the env that it makes")
    return Source(maker, {"render_mode": RENDER_MODE})


def _takes_mode(maker: Callable[..., Any]) -> bool:
    try:
        signature(maker).bind(render_mode=RENDER_MODE)
    except TypeError:
        return False
    return True


def _draw_off_screen() -> None:
    """Tell pygame and MuJoCo, where the user has not, that there is no screen to draw on."""
    names = {"PYGAME_HIDE_SUPPORT_PROMPT": "1", "SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}
    if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        names["MUJOCO_GL"] = "egl"
    for name, value in names.items():
        os.environ.setdefault(name, value)
