"""A film of a policy: one episode, drawn off screen."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

from gymnasium.error import UnsupportedMode

from swath.cli.naming import env_named
from swath.evaluators import evaluate_policy
from swath.report.video import VideoWriter
from swath.rollout.hosts.base import fps_of
from swath.rollout.hosts.sources import Source, make_env

if TYPE_CHECKING:
    from pathlib import Path

    from swath.cli.config import RunConfig

MOST_FRAMES = 3000
"""Where a film ends if its episode does not."""


def film_episode(config: RunConfig, policy: Any, path: Path) -> None:
    """Play episode 0 of the evaluation once more and write it as a film.

    Raises:
        ImportError: imageio-ffmpeg is not installed; the message names the extra.
        gymnasium.error.Error: the env cannot render, or misses a package for it.
    """
    _draw_off_screen()
    make = env_named(config.env)
    with closing(make_env(Source(make))) as env:
        modes = env.metadata.get("render_modes") or ()
    if "rgb_array" not in modes:
        raise UnsupportedMode(f"{config.env} has no render mode 'rgb_array'; its metadata have {list(modes)}")
    drawn = make_env(Source(make, {"render_mode": "rgb_array"}))
    with closing(drawn), VideoWriter(path, fps_of(drawn) or 30) as film:

        def shoot(*_: object) -> None:
            film.write(drawn.render())

        evaluate_policy(policy, drawn, 1, callback=shoot, warn=False, max_steps=MOST_FRAMES, seed=config.seed)


def _draw_off_screen() -> None:
    """Tell pygame and MuJoCo, where the user has not, that there is no screen to draw on."""
    names = {"PYGAME_HIDE_SUPPORT_PROMPT": "1", "SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}
    if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        names["MUJOCO_GL"] = "egl"
    for name, value in names.items():
        os.environ.setdefault(name, value)
