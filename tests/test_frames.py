"""Whose code was called: one answer, wherever it is asked for."""

import runpy
import sysconfig
from pathlib import Path

import pytest

from swath.frames import Frame, place

MINE = Frame("/home/me/maze.py", "18", "step")
OURS = Frame(place.__code__.co_filename, "5", "host_step")
LIBRARY = Frame(str(Path(sysconfig.get_path("purelib")) / "gymnasium" / "core.py"), "9", "step")


@pytest.mark.parametrize("separator", [",", ""])
def test_a_frame_is_read_from_a_traceback_and_from_the_stack_of_a_thread(separator):
    assert Frame.written(f'  File "/home/me/maze.py", line 18{separator} in step') == MINE
    assert Frame.written("    self.door.open()") is None


@pytest.mark.parametrize(
    "file",
    [
        "<frozen importlib._bootstrap>",
        "<string>",
        runpy.__file__,
        place.__code__.co_filename,
        "/opt/elsewhere/site-packages/mazes/__init__.py",
        "/usr/lib/python3/dist-packages/mazes/__init__.py",
    ],
)
def test_code_that_is_installed_or_has_no_file_is_not_the_users(file):
    assert not Frame(file, "1", "step").is_users()


def test_installed_code_is_the_users_where_the_env_lies():
    assert LIBRARY.is_users([str(Path(LIBRARY.file).parent)])
    assert not OURS.is_users([OURS.file])


def test_a_place_is_the_innermost_line_of_the_users_below_what_swath_called():
    at = place([LIBRARY, MINE, LIBRARY, OURS, MINE])
    assert (at.caller, at.called, at.function, at.at) == ("host_step", "step", "step", "/home/me/maze.py:18")


def test_a_place_is_that_of_a_library_where_nothing_is_the_users():
    frozen = Frame("<frozen runpy>", "1", "run")
    assert place([frozen, LIBRARY, OURS]).function == "run"
    assert place([OURS]).function == "host_step"
    assert place([MINE, LIBRARY]) is None
