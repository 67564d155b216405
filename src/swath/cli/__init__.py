"""The command line: `swath train`, `swath eval`, `swath collect`, `swath doctor`, `swath bench`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command of this process and exit with its code."""
    from swath.cli.app import run

    sys.exit(run(sys.argv[1:]))
