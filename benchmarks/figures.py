"""What a benchmark has found: printed, and kept for the page that `make bench` writes.

    script ─▶ table, verdict ─▶ standard output
                    └─────────▶ the file that SWATH_FIGURES names, a line of JSON each ─▶ suite.py

Standard library only: the children that stand for other libraries import it too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

KEPT_IN = "SWATH_FIGURES"


def table(title: str, columns: Mapping[str, str], rows: Mapping[str, Sequence[float | None]]) -> None:
    """Print a table, and keep it.

    Args:
        title: above it.
        columns: heading and format of each; the first is what a picture of the table shows.
        rows: name and numbers of each; `None` leaves a cell empty.
    """
    shown = {name: [_cell(*pair) for pair in zip(row, columns.values(), strict=True)] for name, row in rows.items()}
    widths = [max(map(len, cells)) for cells in zip(columns, *shown.values(), strict=True)]
    first = max(34, *map(len, shown))
    print(f"\n{title}")
    for name, cells in {"": list(columns), **shown}.items():
        print(f"  {name:{first}} " + "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)))
    print(end="", flush=True)
    bars = {name: row[0] for name, row in rows.items()}
    _keep(kind="table", title=title, columns=list(columns), rows=shown, bars=bars)


def course(title: str, unit: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Keep what a picture shows as one curve each: seconds and a figure, again and again."""
    _keep(kind="course", title=title, unit=unit, lines=lines)


def verdict(
    what: str, got: float, spec: str = "", *, least: float | None = None, most: float | None = None, note: str = ""
) -> bool:
    """Print whether a figure is what it has to be, and keep that.

    Args:
        what: was measured.
        got: the figure.
        spec: its format; the unit may follow after a space: `".2f ms"`.
        least: it must not be below.
        most: nor above; without either it is only told.
        note: on how sure it is.

    Returns:
        Whether it is.
    """
    passed = (least is None or got >= least) and (most is None or got <= most)
    limits = [f"at {word} {limit:g}" for word, limit in (("least", least), ("most", most)) if limit is not None]
    return _judged(what, _cell(got, spec), " and ".join(limits), note, passed=passed)


def claim(what: str, holds: bool, note: str = "") -> bool:
    """Print whether something holds, and keep that; whether it does."""
    return _judged(what, "yes" if holds else "no", "yes", note, passed=holds)


def ended(passed: Collection[bool]) -> int:
    """Print how it went; the exit code."""
    print(f"\n{'all targets reached' if all(passed) else 'a target was missed'}")
    return int(not all(passed))


def facts_of(file: Path) -> list[dict[str, Any]]:
    """What a script has kept; nothing if it has found nothing."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def _judged(what: str, got: str, wanted: str, note: str, *, passed: bool) -> bool:
    words = f", target {wanted}: {'passed' if passed else 'MISSED'}" if wanted else ""
    print(f"  {what:58} {got:>8}{words}{f'  ({note})' if note else ''}", flush=True)
    _keep(kind="verdict", what=what, got=got, wanted=wanted, note=note, passed=passed)
    return passed


def _cell(number: float | None, spec: str) -> str:
    if number is None:
        return ""
    spec, _, unit = spec.partition(" ")
    return f"{number:{spec}} {unit}".strip()


def _keep(**fact: Any) -> None:
    if home := os.environ.get(KEPT_IN):
        with Path(home).open("a", encoding="utf-8") as file:
            file.write(json.dumps(fact) + "\n")
