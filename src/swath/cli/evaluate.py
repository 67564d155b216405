"""`swath eval`: the evaluation of a checkpoint once more, or of two checkpoints on the same episodes."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from swath.cli.failure import OK, UsageError, broken_off, refusing
from swath.cli.naming import find_checkpoint
from swath.cli.options import FILES, THREAD, Count, RunConfig, Text, starting, table_of
from swath.report.display import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from swath.cli.parts import Saved
    from swath.evaluation.result import Comparison, EvalResult, Floats


def evaluate(
    checkpoint: Path,
    other: Path | None = None,
    /,
    *,
    episodes: Count | None = None,
    seed: Count | None = None,
    device: Text | None = None,
    video: Annotated[Path | None, Parameter(group=FILES, show_default=False)] = None,
) -> int:
    """Repeat the evaluation of a checkpoint and print it beside the stored one, or compare two on the same episodes.

    Args:
        checkpoint: A run's folder, or a .safetensors file of one.
        other: A second one, of the same env; the table says whether it is better, and how sure that is.
        episodes: Episodes to play. [default: as many as in the (first) run]
        seed: Root of the episodes' seeds. [default: that of the (first) run]
        device: Where the networks are. [default: that of the (first) run]
        video: Film the first episode of the (first) policy: an .mp4 file.
    """
    files = [find_checkpoint(path) for path in (checkpoint, other) if path is not None]
    console = starting()
    from swath.cli.parts import film_episode, open_run

    with refusing(""):
        runs = [open_run(file) for file in files]
        asked = {"eval_episodes": episodes, "seed": seed, "device": device}
        given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        config = replace(runs[0].config, eval_backend=THREAD, **given)
    names, env = [f"{run.file}, after {run.progress.frames:,} frames" for run in runs], config.env
    for run in runs:
        if run.config.env != env:
            raise UsageError(f"A was trained on {env}, B on {run.config.env}; only policies of one env can be compared")
    if other is not None and config.eval_episodes < 2:
        raise UsageError(f"--episodes {config.eval_episodes}: a comparison needs 2 episodes or more")
    with broken_off(env), refusing(""):
        results, policies = zip(*(_evaluated(run, config) for run in runs), strict=True)
    _show(console, config, names, results, runs[0].progress.evaluation)
    if video is not None:
        with broken_off(env), refusing(""):
            film_episode(config, policies[0], video)
    return OK


def _show(
    console: Console, config: RunConfig, names: list[str], results: Sequence[EvalResult], stored: EvalResult | None
) -> None:
    """Print one result beside the stored one, or compare two."""
    from swath.cli.parts import eval_table
    from swath.evaluation.result import compare

    now, env = results[0], config.env
    if len(results) > 1:
        console.print(f"{env}: A and B play the same {config.eval_episodes} episodes", soft_wrap=True)
        for letter, name in zip("AB", names, strict=True):
            console.print(f"  {letter}  {name}", soft_wrap=True)
        comparison = compare(*results)
        console.print(eval_table(dict(zip("AB", results, strict=True))))
        console.print(comparison_table(comparison, results[1].returns - now.returns))
        console.print(verdict(comparison), soft_wrap=True)
        return
    console.print(f"{env}, {names[0]}", soft_wrap=True)
    if stored is None or stored.step != now.step or stored.seeds.tolist() != now.seeds.tolist():
        console.print(eval_table({"now": now}))
        return
    console.print(eval_table({"now": now, "stored": stored}))
    same = stored.returns.tolist() == now.returns.tolist()
    console.print("every episode as stored" if same else "not as stored; other versions, device or machine?")


def _evaluated(run: Saved, config: RunConfig) -> tuple[EvalResult, object]:
    """The evaluation of a run's policy on the episodes of this configuration, and the policy."""
    import torch

    from swath.cli.parts import actor_named, device_named, judge_of

    torch.set_num_threads(config.threads)
    policy = actor_named(run.file, config.env, config.env_kwargs).to(device_named(config.device))
    with judge_of(config, policy) as judge:
        return judge.evaluate(policy, run.progress.frames), policy


def comparison_table(comparison: Comparison, gains: Floats) -> Table:
    """How much better B is than A, episode by episode.

    Args:
        comparison: of B with A.
        gains: return of B minus return of A, one per episode.
    """
    better, worse = int((gains > 0).sum()), int((gains < 0).sum())
    table = table_of("B minus A, episode by episode", "")
    table.add_row("mean difference in return", _signed(comparison.difference))
    table.add_row("95 % interval", f"{_signed(comparison.ci_low)} to {_signed(comparison.ci_high)}")
    table.add_row("episodes where B is better", f"{better} of {len(gains)}")
    table.add_row("where both are equal", f"{len(gains) - better - worse} of {len(gains)}")
    table.add_row("where A is better", f"{worse} of {len(gains)}")
    return table


def verdict(comparison: Comparison) -> str:
    """What the interval of the difference says, in a sentence."""
    low, high = comparison.ci_low, comparison.ci_high
    if isnan(low) or isnan(high):
        return "Nothing can be said: there is no interval of returns that are not finite."
    if low == high == 0:
        return "A and B have the same return in every episode."
    if low > 0:
        return "B is better than A: the whole interval is above 0."
    if high < 0:
        return "A is better than B: the whole interval is below 0."
    return f"Neither is shown to be better: the interval holds 0; --episodes {5 * comparison.n} narrows it."


def _signed(value: float) -> str:
    return f"+{number(value)}" if value > 0 else number(value)
