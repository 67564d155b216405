"""The id under which a service knows a run, kept in a file, so that a resumed run goes on under it."""

from __future__ import annotations

from pathlib import Path

from swath.report.atomic import replacing


class RunId:
    """One line of text in a file.

    Args:
        path: the file.
        resume_at: `None` for a new run, else a frame count; as for sinks.

    Raises:
        FileExistsError: `resume_at` is `None` and the file is there.
    """

    def __init__(self, path: str | Path, resume_at: int | None = None) -> None:
        self._path = Path(path)
        if resume_at is None and self._path.exists():
            raise FileExistsError(f"{self._path} names another run; resume it or choose a new folder")

    @property
    def kept(self) -> str | None:
        """The id that was kept; `None` if none was, or the file is empty."""
        return (self._path.read_text(encoding="utf-8").strip() or None) if self._path.exists() else None

    def keep(self, name: str) -> None:
        """Write it down."""
        with replacing(self._path) as draft:
            draft.write_text(f"{name}\n", encoding="utf-8")
