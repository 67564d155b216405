"""What the libraries in `survival.py` run on: an env that says where it lives, and a loop that says what it gets.

    worker ─▶ make_env ─▶ a file in the folder, named after its process ─▶ survival.py kills one
    driver ─▶ tell     ─▶ a line for each batch: when, how many frames  ─▶ survival.py

Standard library and Gymnasium only: the children that stand for other libraries import it too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BATCH, RAISED = "survival: batch", "survival: raised"
"""How lines of ours begin; Ray writes others."""


def make_env(folder: str) -> Any:
    """CartPole-v1; the process it is made in is written down."""
    import gymnasium

    Path(folder, str(os.getpid())).touch()
    return gymnasium.make("CartPole-v1")


def tell(collect: Callable[[], int]) -> None:
    """Collect until somebody ends this process, or it raises; `collect` answers with a batch's frames."""
    try:
        while True:
            frames = collect()
            print(BATCH, time.monotonic(), frames, flush=True)
    except Exception as error:  # noqa: BLE001  it is told
        print(RAISED, type(error).__name__, flush=True)
