"""What a dataset consists of: the parts that count, what they were made with, and from where to go on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from swath.report.atomic import replacing

NAME = "_manifest.json"
"""Readers of Parquet pass over names that begin with an underscore."""

VERSION = 1


@dataclass(frozen=True)
class Part:
    """One batch on disk.

    Attributes:
        name: of the file or folder.
        frames: how many rows it has.
        episodes: how many episodes ended in it.
    """

    name: str
    frames: int
    episodes: int


@dataclass(frozen=True)
class Manifest:
    """A dataset at one moment.

    Attributes:
        format: how parts are written.
        settings: plain values that say what the data are; data of other settings have no place here.
        parts: in the order in which they were collected.
        state: from where the collection goes on, as plain values; `None` before the first part.
        version: of this file's layout.
    """

    format: str
    settings: dict[str, Any]
    parts: tuple[Part, ...] = ()
    state: Any = None
    version: int = VERSION

    @property
    def frames(self) -> int:
        """Rows of all parts."""
        return sum(part.frames for part in self.parts)

    @property
    def episodes(self) -> int:
        """Episodes that ended in all parts."""
        return sum(part.episodes for part in self.parts)

    def save(self, folder: Path) -> None:
        """Write it into the dataset's folder; from then on it holds."""
        text = json.dumps(asdict(self), indent=1, allow_nan=False)
        with replacing(folder / NAME) as draft:
            draft.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def find(cls, folder: Path) -> Self | None:
        """The manifest in a folder; `None` where there is none.

        Raises:
            ValueError: it is damaged, or from a newer version.
        """
        file = folder / NAME
        if not file.is_file():
            return None
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            if values["version"] > VERSION:
                raise ValueError(f"{file} has layout {values['version']}, this Swath reads {VERSION}; upgrade Swath")
            return cls(**{**values, "parts": tuple(Part(**part) for part in values["parts"])})
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{file} is no manifest of a dataset: {error!r}; choose another folder") from None
