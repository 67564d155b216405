"""The library as a stranger's type checker sees it."""

import runpy
import subprocess
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parent / "typing"


def test_a_strangers_program_is_clean_under_strict_mypy():
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(PROGRAMS)]
    checked = subprocess.run(command, capture_output=True, text=True, cwd=PROGRAMS.parent.parent, check=False)
    assert (checked.stdout, checked.returncode) == ("", 0)


def test_the_strangers_program_runs():
    runpy.run_path(str(PROGRAMS / "stranger.py"), run_name="__main__")
