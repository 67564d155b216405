"""Whose code it is that was called: the user's, a library's, or Swath's own.

```
 traceback, as text or not ─┐
 stacks that were written ──┼─▶ frames ─┬─▶ is_ours, is_users
 a thread that is at work ──┘           └─▶ place: where what Swath called is now
```
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path

from swath.nearby import near

_WRITTEN = re.compile(r'  File "(.+)", line (\d+),? in (.+)')
"""As Python prints it in a traceback, and as it writes it in the stack of a thread."""
_OURS = [str(Path(__file__).parent)]
_LIBRARIES = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_INSTALLED = {"site-packages", "dist-packages"}
"""Folders of libraries, wherever they are."""


@dataclass(frozen=True)
class Frame:
    """One call that has not come back.

    Attributes:
        file: as Python knows it.
        line: its number.
        function: which one was called.
        source: the line itself, as Python prints it, indented.
    """

    file: str
    line: str
    function: str
    source: list[str] = field(default_factory=list)

    @classmethod
    def written(cls, text: str) -> Frame | None:
        """What a line of a traceback or a stack says; `None` for other lines."""
        found = _WRITTEN.fullmatch(text)
        return cls(found[1], found[2], found[3]) if found else None

    @property
    def at(self) -> str:
        """For the user, `file:line`; files of the current folder by their names there."""
        return f"{near(self.file)}:{self.line}"

    @property
    def is_ours(self) -> bool:
        """Whether it is Swath's own."""
        return _lies_in(self.file, _OURS)

    def is_users(self, homes: Sequence[str] = ()) -> bool:
        """Whether it is that of a file that is not installed, or lies in one of these files and folders."""
        if self.file.startswith("<") or self.is_ours:
            return False
        installed = _lies_in(self.file, _LIBRARIES) or _INSTALLED & set(Path(self.file).parts)
        return not installed or _lies_in(self.file, homes)


@dataclass(frozen=True)
class Place:
    """Where code was.

    Attributes:
        caller: the function of Swath's that called something else.
        called: the function that it called.
        function: the innermost one of the user's, or of a library if there is none of the user's.
        at: the line of that one, as `file:line`.
    """

    caller: str
    called: str
    function: str
    at: str


def place(frames: Sequence[Frame], homes: Sequence[str] = ()) -> Place | None:
    """Where the code is that Swath has called; `None` if Swath is not among the frames.

    Args:
        frames: of one thread, the innermost first.
        homes: where else the user's code lies.
    """
    depth = next((number for number, frame in enumerate(frames) if frame.is_ours), None)
    if depth is None:
        return None
    called = frames[:depth] or [frames[depth]]
    inner = next((frame for frame in called if frame.is_users(homes)), called[0])
    return Place(frames[depth].function, called[-1].function, inner.function, inner.at)


def homes_of(env: str) -> list[str]:
    """Where the module lies that an env is named with, as `module:name`; of one in a package, the package."""
    module, colon, _ = env.partition(":")
    package = PathFinder.find_spec(module.partition(".")[0]) if module and colon else None  # imports nothing
    if package is None:
        return []
    return [*(package.submodule_search_locations or filter(None, [package.origin]))]


def _lies_in(file: str, places: Sequence[str]) -> bool:
    return any(file == one or file.startswith(one + os.sep) for one in places)
