"""`swath bench`: which setting makes most frames per second."""

from __future__ import annotations

import csv
import json
from io import StringIO
from typing import TYPE_CHECKING, Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from swath.bench import Measurement, Score, Setting, as_fast, best, shares, whole_rounds
from swath.cli.bench_config import BenchConfig, Measured, measured, require_form
from swath.cli.bench_failures import Failures
from swath.cli.failure import FAILED, OK, BrokenOffError, told_if_broken_off
from swath.cli.hold import require_folder
from swath.cli.lookout import Lookout
from swath.cli.pasting import command_line
from swath.cli.places import setting_words
from swath.cli.state import versions
from swath.cli.stop import exit_code_of
from swath.report.atomic import replacing
from swath.report.text import number

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from swath.bench import Rounds

SHARE = "of the best: beside the fastest of the same round, the median over the rounds; frames/s is over all of them"


def run_bench(env: str, given: dict[str, Any], out: Path | None) -> int:
    """Measure what the options name, print the figures and the best setting, and return the exit code.

    Raises:
        UsageError: an option, the env, the policy or the folder of `out` cannot be used; nothing was measured.
        BrokenOffError: the env raised when it was built, or the figures cannot be written.
    """
    require_form(out)
    config = BenchConfig(env, **given)
    with Lookout(env), told_if_broken_off(env):
        what, length = measured(config, tuple(given)), config.length()
    if out is not None:
        require_folder(out.parent)
    torch.set_num_threads(config.threads)
    console = Console(highlight=False, emoji=False, markup=False)
    settings = what.grid.settings()
    counts = {"setting": len(settings), "round": length.count}
    told = ", ".join(f"{count} {name}{'s' if count > 1 else ''}" for name, count in counts.items())
    console.print(f"{env}, {what.actor.words}: {told}", soft_wrap=True)
    failures = Failures(env)
    measurement = Measurement(what.subject, settings, failures.note)
    scores, interrupted = _measured(env, console, measurement, length)
    if interrupted and not any(score.rates for score in scores):
        console.print("interrupted before anything was measured", soft_wrap=True)
        return interrupted
    console.print(score_table(scores))
    if len(settings) > 1 and whole_rounds(scores) > 1:
        console.print(SHARE, soft_wrap=True)
    for line in failures.lines(len(settings)):
        console.print(line, soft_wrap=True)
    code = _conclude(console, config, what, scores)
    if out is not None:
        write(out, config, scores)
        console.print(f"figures in {out}", soft_wrap=True)
    if interrupted:
        had = sum(len(score.rates) for score in scores)
        console.print(f"interrupted after {had} of {len(settings) * length.count} turns", soft_wrap=True)
    return interrupted or code


def _measured(env: str, console: Console, measurement: Measurement, length: Rounds) -> tuple[list[Score], int]:
    """What is known when all turns are over, or at Ctrl-C or SIGTERM; and the exit code for these."""
    turns = len(measurement.scores) * length.count
    try:
        with Lookout(env), console.status("") as status:
            measurement.run(length, lambda turn, one: status.update(f"{turn + 1} of {turns}: {setting_words(one)}"))
    except KeyboardInterrupt as end:
        return measurement.scores, exit_code_of(end)
    return measurement.scores, OK


def score_table(scores: Sequence[Score]) -> Table:
    """One row per setting."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    winner = best(scores)
    table.add_column("backend")
    for name in ("workers", "envs each", "frames/s", "lowest", "highest", "of the best"):
        table.add_column(name, justify="right")
    for score, part in zip(scores, shares(scores), strict=True):
        where, rates = score.setting, score.rates
        place = (where.backend, f"{where.workers}", "-" if where.envs is None else f"{where.envs}")
        instead = "failed" if score.failure else "no turn"
        numbers = (number(round(rate)) for rate in (score.median, min(rates), max(rates))) if rates else (instead,)
        share = (f"{part:.0%}",) if part else ()
        table.add_row(*place, *numbers, *share, style="bold" if score is winner else None)
    return table


def write(out: Path, config: BenchConfig, scores: Sequence[Score]) -> None:
    """Write the figures as a table, or with all that belongs to them as JSON.

    Raises:
        BrokenOffError: the disk is full, or the file cannot be written for another reason.
    """
    rows = [score.to_dict() for score in scores]
    whole = {"config": vars(config), "versions": versions(), "scores": rows}
    text = json.dumps(whole, indent=2) + "\n" if out.suffix == ".json" else _as_csv(rows)
    try:
        with replacing(out) as draft:
            draft.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        why = f"--out {out} cannot be written: {error.strerror}"
        raise BrokenOffError(f"{why}; the figures stand above: make room, or name another file next time") from error


def _as_csv(rows: Sequence[dict[str, Any]]) -> str:
    file = StringIO(newline="")
    writer = csv.DictWriter(file, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def code_of(config: BenchConfig, what: Measured, setting: Setting) -> list[str]:
    """How to use a setting: in code and, for an env that is not batched already, on the command line."""
    named = repr(config.env) if isinstance(what.subject.env, str) else config.env.rpartition(":")[2]
    policy = "policy" if config.policy else "policy_factory=policy_factory" if config.policy_factory else ""
    lines = [f"in code: {setting.code(named, policy, config.batch)}"]
    if setting.envs is not None:
        options = {"envs": setting.envs, "workers": setting.workers, "backend": setting.backend, "batch": config.batch}
        flags = (word for name, value in options.items() for word in (f"--{name}", value))
        lines.append(f"on the command line: {command_line('train', config.env, *flags)}")
    return lines


def _conclude(console: Console, config: BenchConfig, what: Measured, scores: Sequence[Score]) -> int:
    winner = best(scores)
    if winner is None:
        return FAILED if all(score.failure for score in scores) else OK
    once = whole_rounds(scores) == 1 and len(scores) > 1
    label = "fastest of one round" if once else "best"
    console.print(f"{label}: {setting_words(winner.setting)}, {number(round(winner.median))} frames/s", soft_wrap=True)
    if once:
        console.print("one round tells nothing about noise; --rounds 3 says which are as fast", soft_wrap=True)
    elif rivals := as_fast(scores, winner):
        names = "; ".join(setting_words(score.setting) for score in rivals)
        console.print(f"as fast, as far as these rounds can tell: {names}", soft_wrap=True)
    for line in code_of(config, what, winner.setting):
        console.print(line, soft_wrap=True)
    return OK
