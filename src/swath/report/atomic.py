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
def replacing(path: str | Path, *, folder: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path` that takes its place when the block ends well.

    ```
    block writes .name.<pid>.tmp.ext ──ends──▶ fsync ──▶ rename to name.ext
                                     ──raises─▶ removed; the old name.ext stays as it was
    ```

    The parent folder is made if it is missing. The temporary name keeps the suffix, for writers that choose a format
    by it.

    Args:
        path: what appears.
        folder: whether it is a folder, which takes the place of no other.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.stem}.{os.getpid()}.tmp{target.suffix}")
    draft.mkdir() if folder else draft.touch()
    mode = draft.stat().st_mode  # as the user's umask has it; some writers make files that only the user can read
    try:
        yield draft
        draft.chmod(mode)
        for written in (draft, *draft.rglob("*")):
            _flush(written)
        draft.replace(target)
        _flush(target.parent)
    finally:
        remove(draft)


def sweep_drafts(folder: Path, stem: str = "*") -> None:
    """Remove what writers that were killed have left in a folder; only if nobody else writes there.

    Args:
        folder: where to look.
        stem: of the names that they were to get; of any by default.
    """
    for draft in folder.glob(f".{stem}.*.tmp*"):
        remove(draft)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, if it is there."""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk; Windows and some network disks cannot do the latter."""
    is_folder = path.is_dir()
    with suppress(*((OSError,) if is_folder else ())):
        descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
