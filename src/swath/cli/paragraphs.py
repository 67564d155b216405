"""Docstrings as the help shows them: a paragraph is one line, which the terminal's width breaks."""

from __future__ import annotations

import re
from inspect import cleandoc
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Command = TypeVar("_Command", bound="Callable[..., int]")

_WITHIN = re.compile(r"(?<!\n)\n(?:(?=\S)| {8})")
"""A line's end within a paragraph of the description, or of an argument, which goes on with eight spaces."""


def with_paragraphs(command: _Command) -> _Command:
    """The same command, each paragraph of its docstring joined: cyclopts would keep the breaks and add its own."""
    command.__doc__ = _WITHIN.sub(" ", cleandoc(command.__doc__ or ""))
    return command
