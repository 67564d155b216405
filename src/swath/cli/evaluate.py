"""`swath eval`: the evaluation of a checkpoint once more, or of two checkpoints on the same episodes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console

from swath.cli.failure import OK, UsageError, broken_off, preparing
from swath.cli.parts import build_policy, judge_of, spaces_of
from swath.cli.state import give_weights, open_run
from swath.cli.table import comparison_table, eval_table, verdict
from swath.cli.words import THREAD
from swath.evaluators import compare

if TYPE_CHECKING:
    from pathlib import Path

    from swath.cli.config import RunConfig
    from swath.cli.state import Saved
    from swath.evaluators import EvalResult


def run_evaluation(files: list[Path], given: dict[str, Any]) -> int:
    """Evaluate the policies of one or two checkpoints, print the numbers, and return the exit code.

    One is shown beside its stored evaluation, two are compared episode by episode.

    Raises:
        UsageError: a checkpoint or the env cannot be used, or the two are of different envs.
        BrokenOffError: the env raised.
    """
    console = Console(highlight=False, emoji=False, markup=False)
    with preparing():
        runs = [open_run(file) for file in files]
        config = replace(runs[0].config, **given, eval_backend=THREAD)
    envs = [run.config.env for run in runs]
    if len(set(envs)) > 1:
        raise UsageError(f"A was trained on {envs[0]}, B on {envs[1]}; only policies of one env can be compared")
    if len(runs) > 1 and config.eval_episodes < 2:
        raise UsageError(f"--episodes {config.eval_episodes}: a comparison needs 2 episodes or more")
    with broken_off(config.env), preparing():
        results = [_evaluated(run, config) for run in runs]
    if len(results) == 1:
        _print_one(console, config, runs[0], results[0])
    else:
        _print_two(console, config, runs, results)
    return OK


def _evaluated(run: Saved, config: RunConfig) -> EvalResult:
    """On the episodes of this configuration."""
    torch.set_num_threads(config.threads)
    policy = build_policy(config, spaces_of(config.env))
    give_weights(policy, run, config.env)
    with judge_of(config, policy) as judge:
        return judge.evaluate(policy, run.progress.frames)


def _print_one(console: Console, config: RunConfig, run: Saved, now: EvalResult) -> None:
    console.print(f"{config.env}, {_named(run)}", soft_wrap=True)
    stored = run.progress.evaluation
    if stored is None or stored.step != now.step or not np.array_equal(stored.seeds, now.seeds):
        console.print(eval_table({"now": now}))
        return
    console.print(eval_table({"now": now, "stored": stored}))
    same = np.array_equal(stored.returns, now.returns)
    console.print("every episode as stored" if same else "not as stored; other versions, device or machine?")


def _print_two(console: Console, config: RunConfig, runs: list[Saved], results: list[EvalResult]) -> None:
    console.print(f"{config.env}: A and B play the same {config.eval_episodes} episodes", soft_wrap=True)
    for name, run in zip("AB", runs, strict=True):
        console.print(f"  {name}  {_named(run)}", soft_wrap=True)
    console.print(eval_table(dict(zip("AB", results, strict=True))))
    comparison = compare(*results)
    console.print(comparison_table(comparison, results[1].returns - results[0].returns))
    console.print(verdict(comparison), soft_wrap=True)


def _named(run: Saved) -> str:
    return f"{run.file}, after {run.progress.frames:,} frames"
