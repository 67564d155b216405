"""Lines of the shell in the documentation: those of swath are run or cut short, at all others somebody looks.

line ──▶ variables, words ──▶ swath: run, or its options are read
                              ray, make, pip, pytest, python: is there such a command, target, extra, plugin, file?
                              others: must be named here
"""

import re
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path

from doc_pages import ROOT
from swath.cli.app import app
from swath.cli.app import run as command_line

SHORT = ("--frames=256", "--batch=128", "--envs=2", "--eval-episodes=2", "--no-video")
LOOKS = {"doctor": (), "bench": ("--rounds=1", "--seconds=0", "--batch=32", "--envs=2")}
TRUSTED = ("docker", "export", "chmod")
"""Commands of the system that are only shown."""


def lines(code):
    """The words of each command, without the variables that are set before it."""
    for line in code.splitlines():
        words = shlex.split(line, comments=True)
        while words and "=" in words[0]:
            del words[0]
        if words:
            yield Path(words[0]).name, words[1:]


def check(code):
    """Run what is ours, look at the rest."""
    for program, words in lines(code):
        LINES.get(program, refuse if program not in TRUSTED else list)(words)


def refuse(words):
    raise AssertionError(f"nobody looks whether this could run: … {shlex.join(words)}")


def swath(words):
    """Run a command of swath, or only look whether there is such a one."""
    app.parse_args(words, exit_on_error=False, print_error=False)
    if "ray" in words:
        return
    if words[0] == "collect":
        assert command_line(words) == 0
    elif words[0] in LOOKS:
        assert command_line([*words, *LOOKS[words[0]]]) == 0
    elif "--workers" in words:
        assert command_line([*words, *SHORT]) == 0


def ray(words):
    """Its own parsers read the line."""
    from click import Context, Group
    from ray.scripts.scripts import cli

    command = cli
    while isinstance(command, Group):
        name, command, words = command.resolve_command(Context(command), words)
    command.make_parser(Context(command, info_name=name)).parse_args(list(words))


def make(words):
    targets = re.findall(r"^(\w+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(words) <= set(targets)


def pip(words):
    """What is installed is this project, with extras that it has; or Ray."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    command, *wanted = (word for word in words if word not in ("-c", "constraints.txt", "-e"))
    assert command == "install"
    for one in wanted:
        name, _, extra = one.rstrip("]").partition("[")
        assert name in (".", "ray"), one
        assert name == "ray" or not extra or set(extra.split(",")) <= set(extras), one


def pytest(words):
    assert words[0] == "-p"
    assert find_spec(words[1]) is not None


def python(words):
    assert (ROOT / words[0]).is_file()


LINES = {"swath": swath, "ray": ray, "make": make, "pip": pip, "pytest": pytest, "python": python}
