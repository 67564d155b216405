"""One process at a time in a folder."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from swath.cli.failure import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

fcntl: Any
try:
    import fcntl
except ImportError:
    fcntl = None  # Windows


@contextmanager
def held(folder: Path, command: str) -> Iterator[bool]:
    """Within the block no other process holds this folder, where the system has locks for it; yields whether it has.

    The system lets go of the lock when the process ends, however it ends; no file tells of it.

    Args:
        folder: which is there.
        command: who is told to be at work there.

    Raises:
        UsageError: another process holds it.
    """
    if fcntl is None:
        yield False
        return
    door = os.open(folder, os.O_RDONLY)
    try:
        yield _locked(door, folder, command)
    finally:
        os.close(door)


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
        raise UsageError(
            f"--out: nothing can be written into {folder}; choose another folder, or change its permissions"
        )


@contextmanager
def claimed(folder: Path, command: str) -> Iterator[None]:
    """Make a folder, or take one that is there, and hold it for the block; a new one that stays empty goes again.

    Args:
        folder: which may be there.
        command: who is told to be at work there.

    Raises:
        UsageError: it is a file, it cannot be made, or another process holds it.
    """
    is_new = not folder.exists()
    require_folder(folder)
    try:
        with held(folder, command):
            yield
    finally:
        if is_new and not any(folder.iterdir()):
            folder.rmdir()


def _locked(door: int, folder: Path, command: str) -> bool:
    try:
        fcntl.flock(door, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        text = f"another `{command}` is at work in {folder}; wait for it, or give another folder"
        raise UsageError(text) from None
    except OSError:  # some network disks have no locks
        return False
    return True
