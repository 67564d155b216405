"""The folder of a run: what lies where, and never two runs in one."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from swath.cli.failure import UsageError
from swath.cli.hold import held, require_folder
from swath.cli.pasting import command_line
from swath.report.atomic import sweep_drafts

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNS = Path("runs")
COMMAND = "swath train"


@dataclass(frozen=True)
class RunFolder:
    """Where the files of one run lie."""

    path: Path

    @property
    def metrics(self) -> Path:
        """Every number of the run, a row per update."""
        return self.path / "metrics.csv"

    @property
    def events(self) -> Path:
        """The same for TensorBoard."""
        return self.path / "tensorboard"

    @property
    def checkpoint(self) -> Path:
        """The latest state."""
        return self.path / "checkpoint.safetensors"

    @property
    def best(self) -> Path:
        """The state with the best evaluation."""
        return self.path / "best.safetensors"

    @property
    def curve(self) -> Path:
        """The learning curve."""
        return self.path / "curve.png"

    @property
    def video(self) -> Path:
        """A film of the final policy."""
        return self.path / "video.mp4"

    @property
    def summary(self) -> Path:
        """The run in figures."""
        return self.path / "summary.json"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within the block no other process trains in this folder, where the system has locks for it.

        What one that was killed had not finished writing is removed.

        Raises:
            UsageError: another process holds it.
        """
        with held(self.path, COMMAND) as surely:
            if surely:
                with suppress(OSError):  # a read-only disk cannot be swept
                    sweep_drafts(self.path)
            yield

    @property
    def way_on(self) -> str:
        """How a run that was broken off goes on."""
        if self.checkpoint.is_file():
            return f"{command_line('train', '--resume', self.path)} goes on from what was saved"
        if self.best.is_file():  # written just before the first checkpoint
            return f"{command_line('train', '--resume', self.best)} goes on from its best evaluation"
        kept = f"{self.path} holds nothing of worth, and has to be deleted first only if --out names it again"
        return f"nothing was saved to go on with: start again; {kept}"


def new_folder(out: Path | None, env: str, seed: int) -> RunFolder:
    """Make the folder of a new run: `out`, or the first of `runs/<env>-seed<seed>`, `…-2`, `…-3` that is free.

    Raises:
        UsageError: `out` is a file, or not empty, or the folder cannot be made.
    """
    if out is not None:
        return RunFolder(_claim(out))
    name = f"{env.replace('/', '-').replace(':', '-')}-seed{seed}"
    for number in count(1):
        path = RUNS / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(f"{path} cannot be made: {error.strerror}; name a folder with --out") from None
        return RunFolder(path)
    raise AssertionError("count() never ends")


def find_checkpoint(path: Path) -> Path:
    """The checkpoint that a user means by a file or by a run's folder.

    Raises:
        UsageError: there is none.
    """
    folder = RunFolder(path)
    file = folder.checkpoint if path.is_dir() else path
    if file.is_file():
        return file
    if folder.metrics.is_file():
        raise UsageError(f"{path} has no checkpoint; {_way_on(folder)}")
    raise UsageError(f"no checkpoint at {file}; give a run's folder or a .safetensors file of one")


def _claim(out: Path) -> Path:
    if out.is_file():
        raise UsageError(f"--out {out} is a file; give a folder")
    if out.is_dir() and any(out.iterdir()):
        raise UsageError(f"--out {out} is not empty; {_way_on_or_elsewhere(RunFolder(out))}")
    require_folder(out)
    return out


def _way_on_or_elsewhere(folder: RunFolder) -> str:
    if folder.checkpoint.is_file():
        return f"--resume {folder.path} goes on with its run, or choose another folder"
    return _way_on(folder) if folder.metrics.is_file() else "choose another folder"


def _way_on(folder: RunFolder) -> str:
    """How to go on with a run that has no checkpoint, if it is not at work this moment."""
    with held(folder.path, COMMAND):
        return folder.way_on
