"""The command line: `swath train` and `swath eval`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command of this process and exit with its code."""
    from swath.cli.app import run  # noqa: PLC0415  `import swath.cli` stays cheap

    sys.exit(run(sys.argv[1:]))
