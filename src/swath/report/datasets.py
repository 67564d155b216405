"""Experience on disk: datasets that are whole at every moment, however their writer ends.

```
 append(rows, state) ──▶ part-000007, written aside, fsync, rename ──▶ manifest, likewise: from now on the part counts
                              └─ killed before that: the next writer removes it and collects again
```
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor

from swath.extras import need
from swath.keys import DONE, NEXT, as_tuple
from swath.report.atomic import remove, replacing, sweep_drafts

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "_manifest.json"
"""Readers of Parquet pass over names that begin with an underscore."""

VERSION = 1
ENTRIES = b"swath.entries"
"""Metadata of a Parquet file: by column, the key of the entry and the shape of one row of it."""

UNSERVED = (".arrow", ".csv", ".feather", ".h5", ".hdf5", ".json", ".jsonl", ".npy", ".npz", ".pt", ".zarr", ".zip")
"""Suffixes that ask for what is not written here."""


class Memmap:
    """Parts as folders of memory-mapped tensors, which `TensorDict.load_memmap` reads, too."""

    name, suffix = "memmap", ""

    def write(self, rows: TensorDictBase, draft: Path) -> None:
        """Write a part, flat rows `[n]`, into a folder."""
        try:
            rows.memmap(draft)
        except RuntimeError as error:  # what torch raises where the disk is full
            raise OSError(f"{draft} could not be written: {error}") from error

    def read(self, part: Path) -> TensorDictBase:
        """The part, memory-mapped."""
        rows: TensorDictBase = TensorDict.load_memmap(part)
        return rows


class Parquet:
    """Parts as Parquet files with one column per entry, for pandas, polars, DuckDB, Spark and the like.

    ```
     "reward" [n, 1] ─────────────────▶ column "reward", one number per row
     "observation" [n, 4] ────────────▶ column "observation", a list of 4 numbers per row
     ("next", "observation") [n, 2, 3] ▶ column "next.observation", a list of 6; the shape is in the file's metadata
    ```

    Raises:
        ImportError: pyarrow is not installed.
    """

    name, suffix = "parquet", ".parquet"

    def __init__(self) -> None:
        self._arrow = need("pyarrow", extra="datasets", why="for .parquet files")
        self._files = need("pyarrow.parquet", extra="datasets", why="for .parquet files")

    def write(self, rows: TensorDictBase, draft: Path) -> None:
        """Write a part, flat rows `[n]`.

        Raises:
            TypeError: an entry is no tensor.
        """
        columns, entries = {}, {}
        for key in rows.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor):
            entry, name = rows.get(key), ".".join(as_tuple(key))
            if not isinstance(entry, torch.Tensor):
                kind = type(entry).__name__
                raise TypeError(f"entry {key!r} is of type {kind}; Parquet files hold tensors: leave it out")
            values, length = self._arrow.array(entry.reshape(-1).numpy()), prod(entry.shape[1:])
            columns[name] = values if length == 1 else self._arrow.FixedSizeListArray.from_arrays(values, length)
            entries[name] = {"key": as_tuple(key), "shape": list(entry.shape[1:])}
        table = self._arrow.table(columns).replace_schema_metadata({ENTRIES: json.dumps(entries)})
        self._files.write_table(table, str(draft), compression="zstd")

    def read(self, part: Path) -> TensorDictBase:
        """The part, in memory."""
        table = self._files.read_table(str(part), partitioning=None)
        rows = TensorDict({}, [table.num_rows])
        for name, entry in json.loads(table.schema.metadata[ENTRIES]).items():
            column = table.column(name).combine_chunks()
            flat = column.flatten() if self._arrow.types.is_fixed_size_list(column.type) else column
            values = torch.from_numpy(flat.to_numpy(zero_copy_only=False).copy())
            rows.set(tuple(entry["key"]), values.reshape(table.num_rows, *entry["shape"]))
        return rows


def format_at(path: Path) -> Memmap | Parquet:
    """What a dataset's path asks for: Parquet if it ends in `.parquet`, else memory-mapped TensorDicts.

    Raises:
        ImportError: a package is missing; the message names the extra.
        ValueError: the path asks for something else.
    """
    suffix = path.suffix.lower()
    if suffix in UNSERVED:
        way_out = "end it in .parquet, or in no suffix for a plain folder"
        raise ValueError(f"{path}: data cannot be written as {suffix}; {way_out}")
    return Parquet() if suffix == Parquet.suffix else Memmap()


@dataclass(frozen=True)
class DatasetPart:
    """One batch on disk: the name of its file or folder, how many rows it has, and how many episodes ended in it."""

    name: str
    frames: int
    episodes: int


@dataclass(frozen=True)
class DatasetManifest:
    """What a dataset consists of at one moment.

    Attributes:
        format: how parts are written.
        settings: plain values that say what the data are; data of other settings have no place here.
        parts: in the order in which they were collected.
        state: from where the collection goes on, as plain values; `None` before the first part.
        version: of this file's layout.
    """

    format: str
    settings: dict[str, Any]
    parts: tuple[DatasetPart, ...] = ()
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
        with replacing(folder / NAME) as draft:
            draft.write_text(json.dumps(asdict(self), indent=1, allow_nan=False) + "\n", encoding="utf-8")

    @property
    def storage(self) -> Memmap | Parquet:
        """What writes and reads its parts.

        Raises:
            ImportError: a package is missing; the message names the extra.
            ValueError: the format is of a newer version.
        """
        if self.format not in (Memmap.name, Parquet.name):
            raise ValueError(f"datasets of the format {self.format!r} cannot be read by this Swath; upgrade Swath")
        return Parquet() if self.format == Parquet.name else Memmap()

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The manifest in a folder.

        Raises:
            FileNotFoundError: there is none.
            ValueError: it is damaged, or from a newer version.
        """
        file = folder / NAME
        if not file.is_file():
            raise FileNotFoundError(f"no dataset in {folder}; `swath collect ENV --out {folder}` makes one")
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            if values["version"] > VERSION:
                raise ValueError(f"{file} has layout {values['version']}, this Swath reads {VERSION}; upgrade Swath")
            return cls(**{**values, "parts": tuple(DatasetPart(**part) for part in values["parts"])})
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{file} is no manifest of a dataset: {error!r}; choose another folder") from None


class Dataset:
    """The parts of a dataset, flat TensorDicts `[n]`, in the order in which they were collected.

    Parts are read when they are asked for; those of a folder are memory-mapped.

    Args:
        path: the dataset's folder.
        manifest: what is in it.

    Raises:
        ImportError: a package for its format is missing.
    """

    def __init__(self, path: Path, manifest: DatasetManifest) -> None:
        self.path, self.manifest = path, manifest
        self._format = manifest.storage

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}: {self.frames:,} frames in {len(self)} parts>"

    @property
    def frames(self) -> int:
        """Rows of all parts."""
        return self.manifest.frames

    @property
    def settings(self) -> dict[str, Any]:
        """What the data were collected with."""
        return dict(self.manifest.settings)

    def __len__(self) -> int:
        return len(self.manifest.parts)

    def __getitem__(self, index: int) -> TensorDictBase:
        return self._format.read(self.path / self.manifest.parts[index].name)

    def __iter__(self) -> Iterator[TensorDictBase]:
        return (self[index] for index in range(len(self)))

    def load(self) -> TensorDictBase:
        """All rows `[frames]`, in memory.

        Raises:
            ValueError: there are none.
        """
        if not len(self):
            raise ValueError(f"{self.path} has no parts yet; collect some first")
        rows: TensorDictBase = torch.cat(list(self), 0)
        return rows


class DatasetWriter(Dataset):
    """Appends batches to a dataset. One writer at a time: whoever has it sees to that. Not thread-safe.

    Made by `begin` or `resume`. What it has written can be read from it, too.
    """

    @classmethod
    def begin(cls, path: str | Path, settings: dict[str, Any]) -> Self:
        """Begin a dataset in a folder that is new or empty, in the format that its name asks for.

        Raises:
            FileExistsError: there is a dataset in the folder.
            ImportError: a package for this format is missing.
            ValueError: the name asks for an unknown format, or there is something else in the folder.
        """
        folder = Path(path)
        made = cls(folder, DatasetManifest(format_at(folder).name, settings))
        if (folder / NAME).exists():
            way_on = f"DatasetWriter.resume({str(folder)!r}) goes on with it"
            raise FileExistsError(f"{folder} holds a dataset; {way_on}, or choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
        sweep_drafts(folder, Path(NAME).stem)
        if any(folder.iterdir()):
            raise ValueError(f"{folder} has files in it, but no dataset; choose a folder that is new or empty")
        made.manifest.save(folder)
        return made

    @classmethod
    def resume(cls, path: str | Path) -> Self:
        """Go on with the dataset in a folder; what a killed writer has left beside it is removed.

        Raises:
            FileNotFoundError: there is none.
            ImportError: a package for its format is missing.
            ValueError: a part is missing.
        """
        made = cls(Path(path), DatasetManifest.read(Path(path)))
        for part in made.manifest.parts:
            if not (made.path / part.name).exists():
                raise ValueError(f"{path} lacks {part.name}; put it back, or collect into another folder")
        sweep_drafts(made.path)
        remove(made.path / made._next_name)
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
        part = DatasetPart(self._next_name, len(rows), int(rows[NEXT, DONE].sum()))
        remove(self.path / part.name)  # one that was written, and never came to count
        with replacing(self.path / part.name, folder=not self._format.suffix) as draft:
            self._format.write(rows, draft)
        changed = replace(self.manifest, parts=(*self.manifest.parts, part), state=state)
        changed.save(self.path)
        self.manifest = changed

    @property
    def _next_name(self) -> str:
        return f"part-{len(self.manifest.parts):06}{self._format.suffix}"


def open_dataset(path: str | Path) -> Dataset:
    """The dataset in a folder, as far as it has been written.

    Raises:
        FileNotFoundError: there is none.
        ImportError: a package for its format is missing.
        ValueError: its manifest is damaged, or from a newer version.
    """
    return Dataset(Path(path), DatasetManifest.read(Path(path)))
