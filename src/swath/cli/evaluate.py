"""`swath eval`: the evaluation of a checkpoint once more, or of two checkpoints on the same episodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console

from swath.cli.failure import OK, UsageError, told_if_broken_off, told_if_misfitting, told_in_one_line
from swath.cli.judge import eval_envs
from swath.cli.lookout import Lookout
from swath.cli.naming import maker_named
from swath.cli.parts import build_policy
from swath.cli.spaces import spaces_of_copies
from swath.cli.state import give_weights, open_run
from swath.cli.table import comparison_table, eval_table, verdict
from swath.evaluate.local import LocalEvaluation, Slots
from swath.evaluate.request import EvalRequest
from swath.evaluate.stopping import StopRule
from swath.evaluators import compare

if TYPE_CHECKING:
    from pathlib import Path

    from swath.cli.config import RunConfig
    from swath.cli.state import Saved
    from swath.evaluators import EvalResult

FEWEST_PAIRS = 2


@dataclass(frozen=True)
class Candidate:
    """A checkpoint whose policy is evaluated."""

    file: Path
    saved: Saved

    def __str__(self) -> str:
        """For the user."""
        return f"{self.file}, after {self.saved.progress.frames:,} frames"


def run_evaluation(files: list[Path], given: dict[str, Any]) -> int:
    """Evaluate the policies of one or two checkpoints, print the numbers, and return the exit code.

    One is shown beside its stored evaluation, two are compared episode by episode.

    Raises:
        UsageError: a checkpoint or the env cannot be used, or the two are of different envs.
        BrokenOffError: the env raised.
    """
    console = Console(highlight=False, emoji=False, markup=False)
    with told_in_one_line():
        candidates = [Candidate(file, open_run(file)) for file in files]
        config = replace(candidates[0].saved.config, **given)
        _require_comparable(candidates, config)
    with Lookout(config.env), told_if_broken_off(config.env), told_in_one_line():
        results = _evaluated(candidates, config)
    if len(results) == 1:
        _print_one(console, config, candidates[0], results[0])
    else:
        _print_two(console, config, candidates, results)
    return OK


def _require_comparable(candidates: list[Candidate], config: RunConfig) -> None:
    envs = [candidate.saved.config.env for candidate in candidates]
    if len(set(envs)) > 1:
        raise UsageError(f"A was trained on {envs[0]}, B on {envs[1]}; only policies of one env can be compared")
    if len(candidates) > 1 and config.eval_episodes < FEWEST_PAIRS:
        raise UsageError(f"--episodes {config.eval_episodes}: a comparison needs {FEWEST_PAIRS} episodes or more")


def _evaluated(candidates: list[Candidate], config: RunConfig) -> list[EvalResult]:
    """All on the same episodes, those of this configuration."""
    torch.set_num_threads(config.threads)
    spaces = spaces_of_copies(config.env)
    with LocalEvaluation(maker_named(config.env), Slots(eval_envs(config))) as evaluation:
        results = []
        for candidate in candidates:
            policy = build_policy(config, spaces)
            with told_if_misfitting(candidate.file, config.env):
                give_weights(policy, candidate.saved)
            done = candidate.saved.progress
            request = EvalRequest(
                StopRule(config.eval_episodes), seed=config.seed, step=done.frames, policy_version=done.version
            )
            results.append(evaluation.run(policy, request))
    return results


def _print_one(console: Console, config: RunConfig, candidate: Candidate, now: EvalResult) -> None:
    console.print(f"{config.env}, {candidate}", soft_wrap=True)
    stored = candidate.saved.progress.evaluation
    if stored is None or stored.step != now.step or not np.array_equal(stored.seeds, now.seeds):
        console.print(eval_table({"now": now}))
        return
    console.print(eval_table({"now": now, "stored": stored}))
    same = np.array_equal(stored.returns, now.returns)
    console.print("every episode as stored" if same else "not as stored; other versions, device or machine?")


def _print_two(console: Console, config: RunConfig, candidates: list[Candidate], results: list[EvalResult]) -> None:
    console.print(f"{config.env}: A and B play the same {config.eval_episodes} episodes", soft_wrap=True)
    for name, candidate in zip("AB", candidates, strict=True):
        console.print(f"  {name}  {candidate}", soft_wrap=True)
    console.print(eval_table(dict(zip("AB", results, strict=True))))
    comparison = compare(*results)
    console.print(comparison_table(comparison, results[1].returns - results[0].returns))
    console.print(verdict(comparison), soft_wrap=True)
