"""From options to a run that is ready to start: a new one, or one that goes on."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swath.cli.failure import UsageError, told_if_misfitting
from swath.cli.folder import RunFolder, find_checkpoint, new_folder
from swath.cli.logs import require_extras
from swath.cli.parts import Parts, build_parts
from swath.cli.places import backend_named
from swath.cli.state import Progress, open_run, restore

if TYPE_CHECKING:
    from pathlib import Path

    from swath.cli.config import Resumption, RunConfig
    from swath.cli.state import Saved


@dataclass(frozen=True)
class Plan:
    """A run that is ready to start.

    Attributes:
        config: its options.
        folder: where its files go.
        parts: what it works with; whoever has the plan closes them.
        progress: what has been done already.
        resumed: whether it goes on from a checkpoint.
    """

    config: RunConfig
    folder: RunFolder
    parts: Parts
    progress: Progress
    resumed: bool = False

    @property
    def is_finished(self) -> bool:
        """Whether the run has reached its last frame."""
        return self.progress.frames >= self.config.frames


def plan_new(config: RunConfig, out: Path | None) -> Plan:
    """Build the parts, then make the folder: an env that cannot be built leaves none."""
    require_extras(config.log)
    with ExitStack() as stack:
        parts = stack.enter_context(build_parts(config))
        folder = new_folder(out, config.env, config.seed)
        stack.pop_all()
    return Plan(config, folder, parts, Progress())


@dataclass(frozen=True)
class Reopened:
    """A run that is to go on.

    Attributes:
        file: its checkpoint.
        saved: what is in it.
        config: its options, with those that were given beside `--resume`.
    """

    file: Path
    saved: Saved
    config: RunConfig


def reopen(asked: Resumption) -> Reopened:
    """Open the checkpoint and look at what is asked for beside it; nothing is built."""
    given, file = asked.given, find_checkpoint(asked.path)
    if "backend" in given:
        given = {**given, "backend": backend_named(given["backend"])}
    saved = open_run(file)
    config, done = saved.config.changed(given), saved.progress.frames
    if done >= config.frames:
        raise UsageError(
            f"--resume {asked.path}: {done:,} of {config.frames:,} frames are done; give more with --frames"
        )
    return Reopened(file, saved, config)


def plan_resumed(run: Reopened, out: Path | None) -> Plan:
    """Put the parts where they were; `out` begins a copy of the run in another folder."""
    file, saved, config = run.file, run.saved, run.config
    require_extras(config.log)
    with ExitStack() as stack:
        parts = stack.enter_context(build_parts(config))
        with told_if_misfitting(file, config.env):
            restore(parts, saved)
        folder = RunFolder(file.parent) if out is None else _copied(RunFolder(file.parent), out, config)
        stack.pop_all()
    return Plan(config, folder, parts, saved.progress, resumed=True)


def _copied(source: RunFolder, out: Path, config: RunConfig) -> RunFolder:
    folder = new_folder(out, config.env, config.seed)
    if source.metrics.is_file():
        shutil.copyfile(source.metrics, folder.metrics)
    return folder
