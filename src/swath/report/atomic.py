"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` that takes its place when the block ends well.

    ```
    block writes .name.<pid>.tmp.ext ──ends──▶ fsync ──▶ rename to name.ext
                                     ──raises─▶ removed; the old name.ext stays as it was
    ```

    The folder is made if it is missing. The temporary name keeps the suffix, for writers that choose a format by it.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.stem}.{os.getpid()}.tmp{target.suffix}")
    draft.touch()
    mode = draft.stat().st_mode  # as the user's umask has it; some writers make files that only the user can read
    try:
        yield draft
        draft.chmod(mode)
        _flush_file(draft)
        draft.replace(target)
        _flush_folder(target.parent)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def appearing(folder: str | Path) -> Iterator[Path]:
    """Yield a temporary folder beside `folder` that takes this name, with all that is in it, when the block ends well.

    Raises:
        OSError: there is such a folder already, or it cannot be written.
    """
    target = Path(folder)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    draft.mkdir(parents=True)
    try:
        yield draft
        _flush_tree(draft)
        draft.rename(target)
        _flush_folder(target.parent)
    finally:
        remove(draft)


def sweep_drafts(folder: Path, stem: str = "*") -> None:
    """Remove what writers that were killed have left in a folder; only for whoever knows that nobody else writes.

    Args:
        folder: where to look.
        stem: of the names that they were to get; of any by default, which is for folders that are all ours.
    """
    for draft in folder.glob(f".{stem}.*.tmp*"):
        remove(draft)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _flush_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        (_flush_folder if path.is_dir() else _flush_file)(path)
    _flush_folder(folder)


def _flush_file(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    """Let renames outlast a power cut, where the system can promise that: Windows and some network disks cannot."""
    with suppress(OSError):
        door = os.open(path, os.O_RDONLY)
        try:
            os.fsync(door)
        finally:
            os.close(door)
