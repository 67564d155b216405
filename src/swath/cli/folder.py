"""The folder of a run: what lies where, and never two runs in one."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from swath.cli.failure import UsageError, command_line

if TYPE_CHECKING:
    from collections.abc import Iterator


class RunFolder:
    """Where the files of one run lie.

    Attributes:
        path: the folder.
        metrics: every number of the run, a row per update.
        events: the same for TensorBoard.
        checkpoint: the latest state.
        best: the state with the best evaluation.
        curve: the learning curve.
        video: a film of the final policy.
        summary: the run in figures.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics, self.events = path / "metrics.csv", path / "tensorboard"
        self.checkpoint, self.best = path / "checkpoint.safetensors", path / "best.safetensors"
        self.curve, self.video, self.summary = path / "curve.png", path / "video.mp4", path / "summary.json"

    @property
    def way_on(self) -> str:
        """How a run that was broken off goes on."""
        if self.checkpoint.is_file():
            return f"{command_line('train', '--resume', self.path)} goes on from what was saved"
        return "nothing was saved to go on with: start again"


def new_folder(out: Path | None, env: str, seed: int) -> RunFolder:
    """Make the folder of a new run: `out`, or the first of `runs/<env>-seed<seed>`, `…-2`, `…-3` that is free.

    Raises:
        UsageError: `out` is not empty, or the folder cannot be made.
    """
    if out is not None:
        require_folder(out)
        if any(out.iterdir()):
            goes_on = f"--resume {out} goes on with its run, or " if RunFolder(out).checkpoint.is_file() else ""
            raise UsageError(f"--out {out} is not empty; {goes_on}choose another folder")
        return RunFolder(out)
    first = Path("runs") / f"{env.replace('/', '-').replace(':', '-')}-seed{seed}"
    for path in (first if number == 1 else first.with_name(f"{first.name}-{number}") for number in count(1)):
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
    file = RunFolder(path).checkpoint if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"no checkpoint at {file}; give a run's folder or a .safetensors file of one")
    return file


def require_folder(folder: Path) -> None:
    """Make the folder that `--out` names, unless it is there.

    Raises:
        UsageError: it is a file, it cannot be made, or nothing can be written into it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be a folder: {error.strerror}; choose another one") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"--out: nothing can be written into {folder}; choose another one, or change its permissions")


@contextmanager
def held(folder: Path, command: str) -> Iterator[None]:
    """Within the block no other process works in this folder; one that was new and stays empty goes again.

    The system lets go of the lock when the process ends, however it ends. Some network disks have no locks.

    Raises:
        UsageError: another process holds it, or it cannot be made.
    """
    import fcntl  # Windows has none

    is_new = not folder.exists()
    require_folder(folder)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                text = f"another `{command}` is at work in {folder}; wait for it, or give another folder"
                raise UsageError(text) from None
        yield
    finally:
        os.close(descriptor)
        if is_new and not any(folder.iterdir()):
            folder.rmdir()
