"""`swath eval`: evaluate a checkpoint again, or compare two checkpoints on the same episodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from swath.cli.failure import OK, UsageError, command_line, run_errors, usage_errors
from swath.cli.naming import find_checkpoint
from swath.cli.options import FILES, THREAD, Count, FromZero, Text, make_table, start_console
from swath.report.display import number

if TYPE_CHECKING:
    from swath.evaluation.result import Comparison, Floats


def evaluate(
    checkpoint: Path,
    other: Path | None = None,
    /,
    *,
    episodes: Count | None = None,
    seed: FromZero | None = None,
    device: Text | None = None,
    env: Text | None = None,
    video: Annotated[Path | None, Parameter(group=FILES, show_default=False)] = None,
) -> int:
    """Repeat the evaluation of a checkpoint and compare it with the stored one, or compare two checkpoints.

    Args:
        checkpoint: A run's folder, or a .safetensors file of a run.
        other: A second checkpoint, of the same env; the table says whether it is better, with an interval.
        episodes: Episodes to play. [default: the number of the (first) run]
        seed: Root of the episodes' seeds. [default: the seed of the (first) run]
        device: Device of the networks. [default: the device of the (first) run]
        env: The env, as for `swath train`; required if the run's env is module:name, since a file must not choose
            which code runs. [default: the env of the (first) run]
        video: Film the first episode of the (first) policy: an .mp4 file.
    """
    files = [find_checkpoint(path) for path in (checkpoint, other) if path is not None]
    console = start_console()
    import torch

    from swath.cli import parts
    from swath.evaluation.result import compare

    with usage_errors():
        runs = [parts.open_run(file) for file in files]
    parts.require_safe_env(runs[0], env, command_line("eval", *files, "--env", runs[0].config.env))
    options: dict[str, Any] = {"eval_episodes": episodes, "seed": seed, "device": device, "env": env}
    changes = {name: value for name, value in options.items() if value is not None}
    config = replace(runs[0].config, eval_backend=THREAD, **changes)
    env, count = config.env, config.eval_episodes
    first, last = runs[0].config.env, runs[-1].config.env
    if first != last:
        raise UsageError(f"A was trained on {first}, B on {last}; only policies of one env can be compared")
    if other is not None and count < 2:
        raise UsageError(f"--episodes {count}: a comparison needs 2 episodes or more")
    with run_errors(env), usage_errors():
        torch.set_num_threads(config.threads)
        policies = [
            parts.find_policy(file, env, config.env_kwargs).to(parts.find_device(config.device)) for file in files
        ]
        with parts.make_evaluator(config, policies[0]) as evaluator:
            results = [
                evaluator.evaluate(policy, run.progress.frames) for policy, run in zip(policies, runs, strict=True)
            ]
    names = [f"{run.file}, after {run.progress.frames:,} frames" for run in runs]
    if other is not None:
        lines = [f"{env}: A and B play the same {count} episodes", f"  A  {names[0]}", f"  B  {names[1]}"]
        console.print("\n".join(lines), soft_wrap=True)
        console.print(parts.eval_table(dict(zip("AB", results, strict=True))))
        comparison = compare(*results)
        console.print(comparison_table(comparison, results[1].returns - results[0].returns))
        console.print(comparison.verdict("A", "B"), soft_wrap=True)
    else:
        result, stored = results[0], runs[0].progress.evaluation
        results_by_name = {"now": result}
        if stored is not None and stored.step == result.step and stored.seeds.tolist() == result.seeds.tolist():
            results_by_name["stored"] = stored
        console.print(f"{env}, {names[0]}", soft_wrap=True)
        console.print(parts.eval_table(results_by_name))
        if stored is not None and "stored" not in results_by_name:
            text = "not compared with the stored evaluation, which is of other episodes or of other weights"
            console.print(text, soft_wrap=True)
        elif stored is not None:
            same = stored.returns.tolist() == result.returns.tolist()
            console.print("every episode as stored" if same else "not as stored; other versions, device or machine?")
    if video is not None:
        with run_errors(env), usage_errors():
            parts.film_episode(config, policies[0], video)
        console.print(f"film: {video}", soft_wrap=True)
    return OK


def comparison_table(comparison: Comparison, gains: Floats) -> Table:
    """Return a table of the difference between B and A, episode by episode.

    Args:
        comparison: comparison of B with A.
        gains: return of B minus return of A, one per episode.
    """
    table = make_table("B minus A, episode by episode", "")
    table.add_row("mean difference in return", number(comparison.difference))
    table.add_row("95 % interval", f"{number(comparison.ci_low)} to {number(comparison.ci_high)}")
    labels = ("episodes where B is better", "where both are equal", "where A is better")
    for label, holds in zip(labels, (gains > 0, gains == 0, gains < 0), strict=True):
        table.add_row(label, f"{int(holds.sum())} of {len(gains)}")
    return table
