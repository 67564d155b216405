"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from swath.owner import Owner

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def replacing(path: str | Path, *, folder: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path` that takes its place when the block ends well.

    ```
    block writes .name.<pid>.tmp.ext ──ends──▶ fsync ──▶ rename to name.ext
                                     ──raises─▶ removed; the old name.ext stays as it was
                                     ──killed─▶ removed by the next writer of a file .ext in this folder
    ```

    The parent folder is made if it is missing. The temporary name keeps the suffix, for writers that choose a format
    by it. A fork that leaves the block changes nothing.

    Args:
        path: what appears.
        folder: whether it is a folder, which takes the place of no other.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep_drafts(target.parent, target.suffix)
    draft = target.with_name(f".{target.stem}.{os.getpid()}.tmp{target.suffix}")
    owner = Owner()
    draft.mkdir() if folder else draft.touch()
    mode = draft.stat().st_mode  # as the user's umask has it; some writers make files that only the user can read
    lock = _lock(draft)
    try:
        yield draft
        if not owner.is_here:
            return
        draft.chmod(mode)
        for written in (draft, *draft.rglob("*")):
            _flush(written)
        draft.replace(target)
        _flush(target.parent)
    finally:
        if owner.is_here:
            remove(draft)
        if lock is not None:
            os.close(lock)


def sweep_drafts(folder: Path, suffix: str = "*") -> None:
    """Remove the drafts of killed writers from a folder; drafts of running writers stay.

    Where the disk has no locks, all drafts stay.

    Args:
        folder: where to look.
        suffix: of the names that the drafts were to get, with its point; any by default.
    """
    for draft in folder.glob(f".*.[0-9]*.tmp{suffix if suffix == '*' else escape(suffix)}"):
        if (lock := _lock(draft)) is not None:
            remove(draft)
            os.close(lock)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, if it is there."""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _lock(path: Path) -> int | None:
    """Lock a file or a folder and return its open descriptor; `None` if a writer holds the lock, or there are none.

    The system frees the lock when the process ends, however it ends.
    """
    with suppress(ImportError, OSError):
        import fcntl  # noqa: PLC0415  Windows has none

        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor
    return None


def _flush(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk; Windows and some network disks cannot do the latter."""
    is_folder = path.is_dir()
    with suppress(*((OSError,) if is_folder else ())):
        descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
