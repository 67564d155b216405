"""`swath eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from swath.cli.folder import find_checkpoint
from swath.cli.options import OPTIONS, Given


def evaluate(
    checkpoint: Path,
    other: Path | None = None,
    /,
    *,
    episodes: Given = None,
    seed: Given = None,
    device: Annotated[str | None, Parameter(group=OPTIONS, show_default=False)] = None,
) -> int:
    """Repeat the evaluation of a checkpoint and print it beside the stored one, or compare two on the same episodes.

    Args:
        checkpoint: A run's folder, or a .safetensors file of one.
        other: A second one, of the same env; the table says whether it is better, and how sure that is.
        episodes: Episodes to play. [default: as many as in the (first) run]
        seed: Root of the episodes' seeds. [default: that of the (first) run]
        device: Where the networks are. [default: that of the (first) run]
    """
    files = [find_checkpoint(path) for path in (checkpoint, other) if path is not None]
    from swath.cli.evaluate import run_evaluation  # noqa: PLC0415  imports torch

    given = {"eval_episodes": episodes, "seed": seed, "device": device}
    return run_evaluation(files, {name: value for name, value in given.items() if value is not None})
