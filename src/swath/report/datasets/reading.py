"""Reading a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import torch
from tensordict import TensorDictBase

from swath.report.datasets.formats import format_named
from swath.report.datasets.manifest import Manifest


class Dataset(Sequence[TensorDictBase]):
    """The parts of a dataset, flat TensorDicts `[n]`, in the order in which they were collected.

    Parts are read when they are asked for; those of a folder are memory-mapped.

    Args:
        path: the dataset's folder.
        manifest: what is in it.

    Raises:
        ImportError: a package for its format is missing.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self._manifest = path, manifest
        self._format = format_named(manifest.format)

    def __repr__(self) -> str:
        return f"<Dataset {self.path}: {self.frames:,} frames in {len(self)} parts>"

    @property
    def frames(self) -> int:
        """Rows of all parts."""
        return self._manifest.frames

    @property
    def settings(self) -> dict[str, Any]:
        """What the data were collected with."""
        return dict(self._manifest.settings)

    def __len__(self) -> int:
        return len(self._manifest.parts)

    @overload
    def __getitem__(self, index: int) -> TensorDictBase: ...
    @overload
    def __getitem__(self, index: slice) -> list[TensorDictBase]: ...
    def __getitem__(self, index: int | slice) -> TensorDictBase | list[TensorDictBase]:
        """A part, or several."""
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return self._format.read(self.path / self._manifest.parts[index].name)

    def load(self) -> TensorDictBase:
        """All rows `[frames]`, in memory.

        Raises:
            ValueError: there are none.
        """
        if not len(self):
            raise ValueError(f"{self.path} has no parts yet; collect some first")
        rows: TensorDictBase = torch.cat(list(self), 0)
        return rows


def open_dataset(path: str | Path) -> Dataset:
    """The dataset in a folder, as far as it has been written.

    Raises:
        FileNotFoundError: there is none.
        ImportError: a package for its format is missing.
        ValueError: its manifest is damaged, or from a newer version.
    """
    folder = Path(path)
    manifest = Manifest.find(folder)
    if manifest is None:
        raise FileNotFoundError(f"no dataset in {folder}; `swath collect ENV --out {folder}` makes one")
    return Dataset(folder, manifest)
