"""The command line: `swath train`, `swath eval`, `swath collect`, `swath doctor`, `swath bench`."""

from __future__ import annotations

import sys
from io import TextIOWrapper


def main() -> None:
    """Run the command of this process and exit with its code."""
    from swath.cli.app import run

    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr does: a name must not end a run
    sys.exit(run(sys.argv[1:]))
