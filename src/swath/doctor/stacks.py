"""Where the user's code was when it raised, or did not come back: in a traceback, or in stacks that were written."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb

import swath
from swath.nearby import near

_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)')
_LIBRARIES = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_OURS = [Path(place) for place in swath.__path__]


@dataclass(frozen=True)
class Place:
    """Where code was.

    Attributes:
        caller: the function of Swath's that called something else.
        called: the function that it called.
        function: the innermost one of the user's, or of a library if there is none of the user's.
        line: of that one, as `file:line`.
    """

    caller: str
    called: str
    function: str
    line: str


@dataclass(frozen=True)
class _Frame:
    file: str
    line: str
    function: str

    def __str__(self) -> str:
        return f"{near(self.file)}:{self.line}"

    @property
    def is_users(self) -> bool:
        return not self.lies_in(_LIBRARIES) and not self.lies_in(_OURS)

    def lies_in(self, places: list[Path]) -> bool:
        return any(Path(self.file).is_relative_to(place) for place in places)


def place(text: str) -> Place | None:
    """Where the thread was that went through Swath; `None` if the stacks do not say."""
    for thread in text.split("\n\n"):
        frames = list(_frames(thread))  # the innermost one comes first
        depth = next((number for number, frame in enumerate(frames) if frame.lies_in(_OURS)), None)
        if depth is not None:
            return _place(frames[depth], frames[:depth] or [frames[depth]])
    return None


def users_line(error: BaseException) -> str | None:
    """The innermost line of the user's that an exception went through, as `file:line`; `None` if there is none."""
    frames = [_Frame(one.filename, str(one.lineno), one.name) for one in extract_tb(error.__traceback__)]
    return next((str(frame) for frame in reversed(frames) if frame.is_users), None)


def _place(caller: _Frame, called: list[_Frame]) -> Place:
    users = [frame for frame in called if frame.is_users]
    inner = (users or called)[0]
    return Place(caller.function, called[-1].function, inner.function, str(inner))


def _frames(text: str) -> Iterator[_Frame]:
    return (_Frame(**found.groupdict()) for found in map(_FRAME.fullmatch, text.splitlines()) if found)
