"""Shell lines of the documentation: commands of swath are run or shortened, some others are checked.

line ──▶ variables, words ──▶ swath: run, or its options are read
                              make, pip: target or extra must exist
"""

import re
import shlex
import tomllib
from pathlib import Path

from doc_pages import ROOT
from swath.cli.app import app
from swath.cli.app import run as command_line

SHORT = ("--frames=256", "--batch=128", "--envs=2", "--eval-episodes=2", "--no-video")
LOOKS = {"doctor": (), "bench": ("--rounds=1", "--seconds=0", "--batch=32", "--envs=2")}


def check(code):
    """Run commands of swath, and check names in the others."""
    for line in code.splitlines():
        words = shlex.split(line, comments=True)
        while words and "=" in words[0]:
            del words[0]
        if words and (look := LINES.get(Path(words[0]).name)) is not None:
            look(words[1:])


def swath(words):
    """Run a command of swath, or only check that it exists."""
    app.parse_args(words, exit_on_error=False, print_error=False)
    if "ray" in words:
        return
    if words[0] == "collect":
        assert command_line(words) == 0
    elif words[0] in LOOKS:
        assert command_line([*words, *LOOKS[words[0]]]) == 0
    elif "--workers" in words:
        assert command_line([*words, *SHORT]) == 0


def make(words):
    targets = re.findall(r"^(\w+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(words) <= set(targets)


def pip(words):
    """Check that the extras of this project in an install command exist."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {extra for word in words for part in re.findall(r"^\.\[(.*)\]$", word) for extra in part.split(",")}
    assert wanted <= set(extras)


LINES = {"swath": swath, "make": make, "pip": pip}
