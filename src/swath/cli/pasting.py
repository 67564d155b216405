"""Command lines for the user to paste."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

NAME = "swath"


def command_line(*words: object) -> str:
    """These words after this program's name, quoted as a shell wants it."""
    return shlex.join([_program(), *map(str, words)])


def _program() -> str:
    """How this program is called: by its name where that finds it, else as it was called this time."""
    called, found = Path(sys.argv[0]), shutil.which(NAME)
    if called.stem != NAME or (found and Path(found).resolve() == called.resolve()):
        return NAME
    return str(called)
