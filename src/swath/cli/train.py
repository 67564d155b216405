"""`swath train`: prepare, train, leave everything behind."""

from __future__ import annotations

import json
import shutil
from math import isfinite
from textwrap import fill
from typing import TYPE_CHECKING, Any

from rich.console import Console

from swath.cli.failure import OK, UsageError, broken_off, optional, preparing
from swath.cli.film import film_episode
from swath.cli.folder import RunFolder, find_checkpoint, held, new_folder
from swath.cli.journal import EVALUATION, Run
from swath.cli.logs import require_extras
from swath.cli.outlets import Outlets
from swath.cli.parts import build_parts
from swath.cli.state import Progress, open_run, restore, versions
from swath.cli.stop import StopRequest
from swath.cli.table import eval_table
from swath.cli.training import RETURN, Training
from swath.cli.words import command_line
from swath.report.atomic import replacing
from swath.report.curve import draw_curve

if TYPE_CHECKING:
    from pathlib import Path

    from swath.cli.config import RunConfig
    from swath.cli.state import Saved
    from swath.evaluators import EvalResult

COMMAND = "swath train"


def run_training(config: RunConfig, out: Path | None) -> int:
    """Begin a run and return the exit code.

    Raises:
        UsageError: an option, the env or the folder cannot be used; nothing has been started.
        BrokenOffError: a full disk, full memory, diverged numbers or the env ended the run.
    """
    return _run(config, out, None)


def resume_training(path: Path, given: dict[str, Any], out: Path | None) -> int:
    """Go on with a run and return the exit code; `out` begins a copy of it in another folder.

    Raises:
        UsageError: an option, the env, the folder or the checkpoint cannot be used; nothing has been started.
        BrokenOffError: a full disk, full memory, diverged numbers or the env ended the run.
    """
    with preparing():
        saved = open_run(find_checkpoint(path))
        config, done = saved.config.changed(given), saved.progress.frames
    if done >= config.frames:
        raise UsageError(f"--resume {path}: {done:,} of {config.frames:,} frames are done; give more with --frames")
    return _run(config, out, saved)


def _run(config: RunConfig, out: Path | None, saved: Saved | None) -> int:
    console = Console(highlight=False, emoji=False, markup=False)
    folder: RunFolder | None = None
    with broken_off(config.env, lambda: folder.way_on if folder else ""):
        with preparing():
            require_extras(config.log)
            parts = build_parts(config)
        with parts:
            if saved is not None:
                restore(parts, saved)
            folder = _folder(config, out, saved)
            with held(folder.path, COMMAND):
                run = Run(config, folder, parts, Progress() if saved is None else saved.progress)
                code = _train(run, console, None if saved is None else saved.progress.frames)
        _conclude(run, console)
    return code


def _folder(config: RunConfig, out: Path | None, saved: Saved | None) -> RunFolder:
    if saved is None:
        return new_folder(out, config.env, config.seed)
    source = RunFolder(saved.file.parent)
    if out is None:
        return source
    folder = new_folder(out, config.env, config.seed)
    if source.metrics.is_file():
        shutil.copyfile(source.metrics, folder.metrics)
    return folder


def _train(run: Run, console: Console, resume_at: int | None) -> int:
    with preparing():
        opened = Outlets.open(run.config, run.folder, console, resume_at)
    with opened as outlets, StopRequest(outlets.display.say) as stop:
        if resume_at is not None:
            outlets.display.say(f"goes on at {resume_at:,} frames; simulators are not saved, so episodes begin anew")
        Training(run).run(outlets, stop)
        _leave_summary(run)
        with optional(outlets.display.say, "curve"):
            names = RETURN, f"{EVALUATION}/reward", f"PPO on {run.config.env}"
            draw_curve(run.folder.curve, run.folder.metrics, *names)
        if run.is_finished and run.config.video and not stop.requested:
            outlets.display.doing("filming an episode")
            with optional(outlets.display.say, "film"):  # it must not cost a run
                film_episode(run.config, run.parts.policy, run.folder.video)
    return OK if run.is_finished else stop.exit_code


def _conclude(run: Run, console: Console) -> None:
    """Say how the run ended and where its files are."""
    folder, progress = run.folder.path, run.progress
    if run.is_finished and progress.evaluation:
        console.print(eval_table({f"at {progress.evaluation.step:,} frames": progress.evaluation}))
    if not run.is_finished:
        way_on = command_line("train", "--resume", folder)
        console.print(f"stopped at {progress.frames:,} frames; to go on:\n  {way_on}\n", soft_wrap=True)
    names = "  ".join(sorted(path.name for path in folder.iterdir()))
    listing = fill(names, console.width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    console.print(f"results in {folder}:\n{listing}", soft_wrap=True)
    if run.is_finished:
        console.print(f"to evaluate it: {command_line('eval', folder)}", soft_wrap=True)


def _leave_summary(run: Run) -> None:
    """Write the run in figures; numbers that are not finite are null."""
    progress = run.progress
    summary = {
        "env": run.config.env,
        "algorithm": "PPO",
        "seed": run.config.seed,
        "ended": "finished" if run.is_finished else "stopped",
        "frames": progress.frames,
        "seconds": round(progress.seconds, 3),
        "frames_per_second": round(progress.frames / progress.seconds, 1) if progress.seconds else 0.0,
        "evaluation": progress.evaluation and _figures(progress.evaluation),
        "best_evaluation": _finite(progress.best),
        "config": run.config.to_dict(),
        "versions": versions(),
    }
    with replacing(run.folder.summary) as draft:
        draft.write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _figures(result: EvalResult) -> dict[str, Any]:
    """An evaluation's numbers without their prefix, and its episodes."""
    numbers = {name.partition("/")[2]: _finite(value) for name, value in result.items()}
    episodes = {name: getattr(result, name).tolist() for name in ("returns", "lengths", "seeds")}
    return {"at_frames": result.step, **numbers, **episodes}


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
