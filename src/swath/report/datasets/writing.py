"""Writing a dataset, batch by batch.

```
 append(rows, state) ──▶ part-000007, written aside, fsync, rename ──▶ manifest, likewise: from now on the part counts
                              └─ killed before that: the next writer removes it and collects again
```
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from swath.keys import DONE, NEXT
from swath.report.atomic import remove, sweep_drafts
from swath.report.datasets.formats import format_at, format_named
from swath.report.datasets.manifest import NAME, Manifest, Part

if TYPE_CHECKING:
    from tensordict import TensorDictBase


class DatasetWriter:
    """Appends batches to a dataset. One writer at a time: whoever has it sees to that. Not thread-safe.

    Made by `begin` or `resume`.

    Attributes:
        path: the dataset's folder.
        manifest: what is in it.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        self._format = format_named(manifest.format)

    @classmethod
    def begin(cls, path: Path, settings: dict[str, Any]) -> Self:
        """Begin a dataset in a folder that is new or empty, in the format that its name asks for.

        Raises:
            ImportError: a package for this format is missing.
            ValueError: the name asks for an unknown format, or there is something else in the folder.
        """
        made = cls(path, Manifest(format_at(path).name, settings))
        path.mkdir(parents=True, exist_ok=True)
        sweep_drafts(path, Path(NAME).stem)
        if any(path.iterdir()):
            raise ValueError(f"{path} has files in it, but no dataset; choose a folder that is new or empty")
        made.manifest.save(path)
        return made

    @classmethod
    def resume(cls, path: Path, manifest: Manifest) -> Self:
        """Go on with the dataset of this manifest; what a killed writer has left beside it is removed.

        Raises:
            ImportError: a package for its format is missing.
            ValueError: a part is missing.
        """
        made = cls(path, manifest)
        missing = [part.name for part in manifest.parts if not (path / part.name).exists()]
        if missing:
            raise ValueError(f"{path} lacks {missing[0]}; put it back, or collect into another folder")
        sweep_drafts(path)
        remove(path / made._next_name)
        return made

    def append(self, rows: TensorDictBase, state: Any) -> None:
        """Write a batch; when this returns it counts, whatever happens to this process or to the machine.

        Args:
            rows: `[n]`, on the CPU.
            state: from where the collection goes on after it, as plain values.

        Raises:
            OSError: it cannot be written; the dataset is as it was.
            TypeError: an entry that the format has no place for.
        """
        part = Part(self._next_name, len(rows), int(rows[NEXT, DONE].sum()))
        remove(self.path / part.name)  # one that was written, and never came to count
        self._format.write(rows, self.path / part.name)
        changed = replace(self.manifest, parts=(*self.manifest.parts, part), state=state)
        changed.save(self.path)
        self.manifest = changed

    @property
    def _next_name(self) -> str:
        return f"part-{len(self.manifest.parts):06}{self._format.suffix}"
