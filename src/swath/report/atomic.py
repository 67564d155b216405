"""Atomic writes of files and folders."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from glob import escape
from pathlib import Path

from swath.owner import Owner


@contextmanager
def replace_atomically(path: str | Path, *, folder: bool = False) -> Iterator[Path]:
    """Yield a temporary path, and rename it to `path` when the block succeeds.

    ```
    block writes .name.<pid>.tmp.ext ──ends──▶ fsync ──▶ rename to name.ext
                                     ──raises─▶ removed; the old name.ext does not change
                                     ──killed─▶ removed by the next writer of a file .ext in this folder
    ```

    The parent folder is created if it is missing. The temporary name keeps the suffix, since some writers choose the
    format by it. A forked process that leaves the block changes nothing.

    Args:
        path: the final path.
        folder: whether to make a folder; then `path` must not exist.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_drafts(target.parent, target.suffix)
    draft = target.with_name(f".{target.stem}.{os.getpid()}.tmp{target.suffix}")
    owner = Owner()
    draft.mkdir() if folder else draft.touch()
    mode = draft.stat().st_mode  # follows the user's umask; some writers create files that only the user can read
    with try_lock(draft):
        try:
            yield draft
            if not owner.is_here:
                return
            draft.chmod(mode)
            for entry in (draft, *draft.rglob("*")):
                _flush(entry)
            draft.replace(target)
            _flush(target.parent)
        finally:
            if owner.is_here:
                remove(draft)


def remove_drafts(folder: Path, suffix: str = "*") -> None:
    """Remove the drafts of killed writers from a folder; drafts of running writers stay.

    On a disk without locks all drafts stay.

    Args:
        folder: the folder of the final paths.
        suffix: suffix of the final paths, with its point; any by default.
    """
    for draft in folder.glob(f".*.[0-9]*.tmp{suffix if suffix == '*' else escape(suffix)}"):
        with try_lock(draft) as is_locked:
            if is_locked:
                remove(draft)


def remove(path: Path) -> None:
    """Remove a file, or a folder and its contents, if it exists."""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@contextmanager
def try_lock(path: Path) -> Iterator[bool | None]:
    """Lock a file or a folder against other processes within the block, and yield whether it is locked.

    The system frees the lock when the process ends, however it ends. Yield false if another process has the lock, and
    `None` where there are no locks, as on some network disks.
    """
    is_locked = None
    with ExitStack() as stack:
        with suppress(ImportError, OSError):
            import fcntl  # noqa: PLC0415  Windows has none

            descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_locked = True
            except BlockingIOError:
                is_locked = False
        yield is_locked


def _flush(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk; Windows and some network disks cannot flush folders."""
    is_folder = path.is_dir()
    with suppress(*((OSError,) if is_folder else ())):
        descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
