"""Files as the user names them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def near(file: str) -> Path:
    """A file as seen from the current folder, if it is below that."""
    with suppress(OSError, ValueError):  # that is gone; the file is elsewhere
        return Path(file).relative_to(Path.cwd())
    return Path(file)
