"""`swath train`: prepare, train, leave everything behind."""

from __future__ import annotations

from functools import partial
from textwrap import fill
from typing import TYPE_CHECKING

from rich.console import Console

from swath.cli.artefacts import leave_curve, leave_film, leave_summary
from swath.cli.config import Resumption
from swath.cli.failure import OK, told_if_broken_off, told_in_one_line
from swath.cli.journal import Run
from swath.cli.lookout import Lookout
from swath.cli.outlets import Outlets
from swath.cli.pasting import command_line
from swath.cli.plan import Plan, plan_new, plan_resumed, reopen
from swath.cli.stop import StopRequest
from swath.cli.table import eval_table
from swath.cli.training import Training

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from swath.cli.config import RunConfig


def run_training(asked: RunConfig | Resumption, out: Path | None) -> int:
    """Train as asked for and return the exit code.

    Raises:
        UsageError: an option, the env, the folder or the checkpoint cannot be used; nothing has been started.
        BrokenOffError: a full disk, full memory, diverged numbers or the env ended the run.
    """
    console = Console(highlight=False, emoji=False, markup=False)
    env, planned = _planning(asked, out)
    with Lookout(env) as lookout:
        with told_if_broken_off(env), told_in_one_line():
            plan = planned()
        with told_if_broken_off(env, lambda: plan.folder.way_on), plan.folder.held():
            with plan.parts:
                lookout.know(plan.parts.collector)
                code = _train(plan, console, lookout)
            _conclude(plan, console)
    return code


def _planning(asked: RunConfig | Resumption, out: Path | None) -> tuple[str, Callable[[], Plan]]:
    """The env, as it is named, and what builds a run in it."""
    if not isinstance(asked, Resumption):
        return asked.env, partial(plan_new, asked, out)
    with told_in_one_line():
        run = reopen(asked)
    return run.config.env, partial(plan_resumed, run, out)


def _train(plan: Plan, console: Console, lookout: Lookout) -> int:
    resume_at = plan.progress.frames if plan.resumed else None
    with told_in_one_line():
        opened = Outlets.open(plan.config, plan.folder, console, resume_at)
    with opened as outlets, StopRequest(outlets.display.say) as stop:
        lookout.heed(stop)
        if plan.resumed:
            outlets.display.say(f"goes on at {resume_at:,} frames; simulators are not saved, so episodes begin anew")
        Training(Run(plan.config, plan.folder, plan.parts, plan.progress)).run(outlets, stop)
        leave_summary(plan.config, plan.folder, plan.progress)
        leave_curve(plan.config, plan.folder, outlets.display)
        if plan.is_finished and plan.config.video and not stop.requested:
            leave_film(plan.config, plan.folder, plan.parts.policy, outlets.display)
    return OK if plan.is_finished else stop.exit_code


def _conclude(plan: Plan, console: Console) -> None:
    """Say how the run ended and where its files are."""
    folder, progress = plan.folder.path, plan.progress
    if plan.is_finished and progress.evaluation:
        console.print(eval_table({f"at {progress.evaluation.step:,} frames": progress.evaluation}))
    if not plan.is_finished:
        way_on = command_line("train", "--resume", folder)
        console.print(f"stopped at {progress.frames:,} frames; to go on:\n  {way_on}\n", soft_wrap=True)
    names = "  ".join(sorted(path.name for path in folder.iterdir()))
    listing = fill(names, console.width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    console.print(f"results in {folder}:\n{listing}", soft_wrap=True)
    if plan.is_finished:
        again = " again" if progress.evaluation else ""
        console.print(f"to evaluate it{again}: {command_line('eval', folder)}", soft_wrap=True)
