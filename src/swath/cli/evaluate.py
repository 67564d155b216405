"""`swath eval`: the evaluation of a checkpoint, once more."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console

from swath.cli.failure import OK, told_if_misfitting, told_in_one_line
from swath.cli.folder import find_checkpoint
from swath.cli.judge import Judge
from swath.cli.parts import build_policy
from swath.cli.state import open_run
from swath.cli.table import eval_table

if TYPE_CHECKING:
    from pathlib import Path

    from swath.evaluators import EvalResult


def run_evaluation(checkpoint: Path, given: dict[str, Any]) -> int:
    """Evaluate the policy of a checkpoint, print the numbers beside the stored ones, and return the exit code.

    Raises:
        UsageError: the checkpoint or the env cannot be used.
    """
    console = Console(highlight=False, emoji=False, markup=False)
    with told_in_one_line():
        file = find_checkpoint(checkpoint)
        saved = open_run(file)
        config = replace(saved.config, **given)
        torch.set_num_threads(config.threads)
        judge = Judge(config)
    with closing(judge):
        policy = build_policy(config, judge)
        with told_if_misfitting(file, f"{config.env} as it is here"):
            policy.load_state_dict(saved.state["policy"])
        result = judge.evaluate(policy, saved.progress.frames, saved.progress.version)
    console.print(f"{config.env}, {file}, after {saved.progress.frames:,} frames", soft_wrap=True)
    _print(console, result, saved.progress.evaluation)
    return OK


def _print(console: Console, now: EvalResult, stored: EvalResult | None) -> None:
    if stored is None or stored.step != now.step or not np.array_equal(stored.seeds, now.seeds):
        console.print(eval_table({"now": now}))
        return
    console.print(eval_table({"now": now, "stored": stored}))
    same = np.array_equal(stored.returns, now.returns)
    console.print("every episode as stored" if same else "not as stored; other versions, device or machine?")
