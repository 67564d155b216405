"""What an env prints, which is kept from the user's screen and told in one line.

```
 process of the env ──stdout──▶ file ──▶ Output: counts lines, keeps the first, and empties the file now and then
```
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from swath.doctor.finding import Finding, Level

MOST_LINES = 20
"""Lines that an env may print without being told of: some greet, or warn once."""
LONGEST = 80
MOST_BYTES = 1 << 20
"""In the file, when it is looked at."""
STDOUT = 1


@dataclass
class Printed:
    """What was printed.

    Attributes:
        lines: how many, about: what is printed while the file is emptied is left out.
        first: the first that says something.
    """

    lines: int = 0
    first: str = ""


class Output:
    """What another process prints.

    Args:
        path: of the file; made here, before that process writes there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._printed = Printed()
        path.touch()

    def keep_small(self) -> None:
        """Empty the file if there is much in it; to be called now and then while the other process is at work."""
        if self._path.stat().st_size > MOST_BYTES:
            self._empty()

    def taken(self) -> Printed:
        """What was printed since this was last asked."""
        self._empty()
        printed, self._printed = self._printed, Printed()
        return printed

    def _empty(self) -> None:
        """Up to where it reaches now: it may grow as fast as it is read."""
        left = self._path.stat().st_size
        with self._path.open("rb") as file:
            while left > 0 and (chunk := file.read(min(left, MOST_BYTES))):
                left -= len(chunk)
                self._note(chunk)
        os.truncate(self._path, 0)

    def _note(self, chunk: bytes) -> None:
        self._printed.lines += chunk.count(b"\n") + chunk.count(b"\r") - chunk.count(b"\r\n")
        if not self._printed.first:
            first = next((line for line in chunk.splitlines() if line.strip()), b"")
            self._printed.first = first.decode("utf-8", "replace").strip()[:LONGEST]


def print_to(path: Path) -> None:
    """Turn the standard output of this process into a file for good; native code writes there, too."""
    sys.stdout.flush()
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, STDOUT)
    os.close(file)


def flush() -> None:
    """Have what was printed in the file, unless somebody has closed it."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()


def check_output(printed: Printed) -> Iterator[Finding]:
    """Whether an env prints a lot."""
    if printed.lines > MOST_LINES:
        yield Finding(
            Level.WARNING,
            "output of the env",
            f"{printed.lines:,} lines in one look, the first {printed.first!r}",
            "an env that is silent while it is stepped",
            "take the prints out of it, or hand them to logging: they take time, and those of several workers mix",
        )
