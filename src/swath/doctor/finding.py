"""What a check finds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum


class Level(Enum):
    """How bad it is."""

    ERROR = "error"
    """It will fail, or give wrong data."""
    WARNING = "warning"
    """It works, at a price."""
    NOTE = "note"
    """Good to know."""


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        level: how bad it is.
        what: what was looked at, such as `"observations"`.
        value: what was found there.
        wanted: what should be there.
        next_move: what to do about it.
    """

    level: Level
    what: str
    value: str
    wanted: str
    next_move: str

    def to_dict(self) -> dict[str, str]:
        """Plain values."""
        return {**asdict(self), "level": self.level.value}


def told(error: BaseException) -> str:
    """An exception in one line, without its notes."""
    return " ".join(f"{type(error).__name__}: {error}".split())
