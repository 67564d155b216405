"""`swath eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from swath.cli.options import EVALUATION, EvaluationCount


def evaluate(
    checkpoint: Path,
    /,
    *,
    episodes: EvaluationCount = None,
    seed: EvaluationCount = None,
    device: Annotated[str | None, Parameter(group=EVALUATION, show_default=False)] = None,
) -> int:
    """Repeat the evaluation of a checkpoint with the same episodes, and print it beside the stored one.

    Args:
        checkpoint: A run's folder, or a .safetensors file of one.
        episodes: Episodes to play. [default: as many as in the run]
        seed: Root of the episodes' seeds. [default: that of the run]
        device: Where the networks are. [default: cpu]
    """
    from swath.cli.evaluate import run_evaluation  # noqa: PLC0415  imports torch

    given = {"eval_episodes": episodes, "seed": seed, "device": device}
    return run_evaluation(checkpoint, {name: value for name, value in given.items() if value is not None})
