"""Parts as folders of memory-mapped tensors, which `TensorDict.load_memmap` reads, too."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tensordict import TensorDict, TensorDictBase

from swath.report.atomic import appearing


class Memmap:
    """One folder per part, one file per entry: rows are read from disk when they are looked at."""

    name: ClassVar[str] = "memmap"
    suffix: ClassVar[str] = ""

    def write(self, rows: TensorDictBase, part: Path) -> None:
        """Write the part."""
        with appearing(part) as draft:
            try:
                rows.memmap(draft)
            except RuntimeError as error:  # what torch raises where the disk is full
                raise OSError(f"{part} could not be written: {error}") from error

    def read(self, part: Path) -> TensorDictBase:
        """The part, memory-mapped."""
        rows: TensorDictBase = TensorDict.load_memmap(part)
        return rows
