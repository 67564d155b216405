import os
import sys
from pathlib import Path

import pytest

from swath.cli.pasting import command_line


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program of this name in a folder `bin` of the current one, which is the only one that is searched."""
    path = tmp_path / "bin" / "swath"
    path.parent.mkdir()
    path.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(path.parent))
    return path


def test_words_are_quoted_as_a_shell_wants_them():
    assert command_line("eval", Path("my runs/a"), 3) == "swath eval 'my runs/a' 3"


def test_a_program_that_is_found_is_called_by_its_name(program, monkeypatch):
    for called in (program, Path("bin/swath")):
        monkeypatch.setattr(sys, "argv", [str(called), "train"])
        assert command_line("eval") == "swath eval"


@pytest.mark.parametrize("searched", ["", "other"])
def test_a_program_that_is_not_found_is_called_as_it_was(searched, program, monkeypatch):
    other = program.parent.parent / "other" / "swath"
    other.parent.mkdir()
    other.touch(mode=0o755)
    monkeypatch.setenv("PATH", os.fspath(other.parent) if searched else "")
    monkeypatch.setattr(sys, "argv", ["bin/swath", "train"])
    assert command_line("eval") == "bin/swath eval"
