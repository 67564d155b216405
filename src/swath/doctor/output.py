"""What an env prints, which is kept from the user's screen and told in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from swath.doctor.finding import Finding, Level

MOST_LINES = 20
"""Lines that an env may print without being told of: some greet, or warn once."""
LONGEST = 80


class Output:
    """The standard output of this process, turned into a file for good; native code writes there, too.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told = 0
        with path.open("wb") as file:
            sys.stdout.flush()
            os.dup2(file.fileno(), sys.stdout.fileno())

    def lines(self) -> list[str]:
        """What was written since this was last asked."""
        sys.stdout.flush()
        with self._path.open("rb") as file:
            file.seek(self._told)
            text = file.read()
        self._told += len(text)
        return text.decode("utf-8", "replace").splitlines()


def check_output(lines: Sequence[str]) -> Iterator[Finding]:
    """Whether an env prints a lot."""
    if len(lines) > MOST_LINES:
        first = next((line for line in lines if line.strip()), "")
        yield Finding(
            Level.WARNING,
            "output of the env",
            f"{len(lines):,} lines in one look, the first {first[:LONGEST]!r}",
            "an env that is silent while it is stepped",
            "take the prints out of it, or hand them to logging: they take time, and those of several workers mix",
        )
