"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from contextlib import contextmanager
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
        _flush_to_disk(draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def sweep_drafts(folder: Path) -> None:
    """Remove what writers that were killed have left in a folder; only for whoever knows that nobody else writes."""
    for draft in folder.glob(".*.tmp*"):
        draft.unlink(missing_ok=True)


def _flush_to_disk(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
