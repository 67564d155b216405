"""Metrics as a table in a CSV file that is whole at every moment.

```
log(frames, metrics) ──known columns──▶ append one row, flush
                     ──new column─────▶ rewrite the file under the wider header (temporary file, rename), then append
resume at frame n    ──────────────────▶ keep the rows up to n, drop later ones and a torn last line
```
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from swath.report.atomic import replacing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FRAMES = "frames"

Row = dict[str, str]


class CsvSink:
    """Writes one row per call; the first column is the frame count, empty cells mean "not measured here".

    Args:
        path: the file; its folder is made if it is missing.
        resume_at: `None` starts a new file. A frame count goes on with the file that is there and first drops the rows
            beyond this frame, which a resumed run will write again.

    Raises:
        FileExistsError: `resume_at` is `None` and the file is there.
    """

    def __init__(self, path: str | Path, resume_at: int | None = None) -> None:
        self._path = Path(path)
        if resume_at is None and self._path.exists():
            raise FileExistsError(f"{self._path} holds the metrics of another run; resume it or choose a new file")
        self._columns: tuple[str, ...] = (FRAMES,)
        rows: list[Row] = []
        if resume_at is not None and self._path.exists():
            self._columns, rows = read_rows(self._path)
            rows = [row for row in rows if int(row[FRAMES]) <= resume_at]
        self._rewrite(self._columns, rows)
        self._file = self._opened()

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Append one row and flush it.

        Raises:
            OSError: the disk does not take it; when there is room again, later rows can be written.
        """
        new = tuple(name for name in metrics if name not in self._columns)
        if new:
            self._widen(new)
        row = {FRAMES: str(frames), **{name: format_value(value) for name, value in metrics.items()}}
        self._file.write(_lines(self._columns, [row]))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _widen(self, new: tuple[str, ...]) -> None:
        _, rows = read_rows(self._path)
        columns = (*self._columns, *new)
        try:
            self._file.close()  # where files that are open cannot be replaced
            self._rewrite(columns, rows)
            self._columns = columns
        finally:
            self._file = self._opened()

    def _rewrite(self, columns: tuple[str, ...], rows: Iterable[Row]) -> None:
        header = dict(zip(columns, columns, strict=True))
        with replacing(self._path) as draft:
            draft.write_text(_lines(columns, [header, *rows]), encoding="utf-8", newline="")

    def _opened(self) -> TextIO:
        return self._path.open("a", encoding="utf-8", newline="")


def read_rows(path: str | Path) -> tuple[tuple[str, ...], list[Row]]:
    """The columns and the whole rows of a metrics file; a last line without its end is left out.

    Raises:
        ValueError: the file does not begin with the column `frames`.
    """
    text = Path(path).read_text(encoding="utf-8")
    table = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))
    if not table or table[0][:1] != [FRAMES]:
        raise ValueError(f"{path} is no metrics file of a run: its first column must be {FRAMES!r}")
    columns = tuple(table[0])
    return columns, [dict(zip(columns, cells, strict=True)) for cells in table[1:]]


def format_value(value: float) -> str:
    """The shortest text that reads back as the same number: `3`, `0.1`, `nan`."""
    return str(value) if isinstance(value, int) else repr(float(value))


def _lines(columns: tuple[str, ...], rows: Iterable[Row]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, columns, restval="", lineterminator="\n").writerows(rows)
    return text.getvalue()
