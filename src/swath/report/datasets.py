"""Experience on disk: datasets that are whole at every moment, however their writer ends.

```
 append(rows, state) ──▶ part-000007, written aside, fsync, rename ──▶ manifest, the same: from now on the part counts
                              └─ killed before that: the next writer removes it and collects again
```
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Self

import torch
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor

from swath.extras import need
from swath.keys import DONE, NEXT, as_tuple
from swath.report.atomic import remove, replacing, sweep_drafts
from swath.report.checkpoint import bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Entries = Mapping[tuple[str, ...], torch.Tensor]

NAME = "_manifest.json"
"""Readers of Parquet pass over names that begin with an underscore."""

VERSION = 2
INDEX = "entries.json"
"""In a folder of memory-mapped tensors: by file, the key, dtype and shape of the entry in it."""

ENTRIES = b"swath.entries"
"""Metadata of a Parquet file: by column, the key of the entry and the shape of one row of it."""

UNSERVED = (".arrow", ".csv", ".feather", ".h5", ".hdf5", ".json", ".jsonl", ".npy", ".npz", ".pt", ".zarr", ".zip")
"""Suffixes that ask for what is not written here."""

PICKLES = (".pickle", ".pkl")
"""Suffixes of the files in which tensordict keeps objects; reading one runs code."""

WAY_OUT = "put back a copy of it, or collect into another folder"

CHUNK = 2**17
"""Bytes that are read at a time for a checksum."""


class Memmap:
    """Parts as folders of memory-mapped tensors, which `TensorDict.load_memmap` reads, too."""

    name, suffix = "memmap", ""

    def write(self, entries: Entries, draft: Path) -> None:
        """Write the entries of a part into a folder, by `write`: a full disk is an exception, not a signal.

        Raises:
            OSError: they could not be written.
        """
        try:
            layout = TensorDict(dict(entries), [len(next(iter(entries.values())))]).memmap_like(draft)
        except RuntimeError as error:  # of torch, where a file cannot be made
            raise OSError(f"{draft} could not be written: {error}") from error
        index = {}
        for key, entry in entries.items():
            file = Path(layout.get(key).filename)
            with file.open("r+b") as content:
                content.write(bytes_of(entry))
            place = {"key": key, "dtype": str(entry.dtype).removeprefix("torch."), "shape": list(entry.shape)}
            index[file.relative_to(draft.absolute()).as_posix()] = place
        (draft / INDEX).write_text(json.dumps(index), encoding="utf-8")

    def read(self, part: Path) -> TensorDictBase:
        """Map the entries of a part into memory; the files are opened read-only, and stay as they are."""
        index, rows = json.loads((part / INDEX).read_text(encoding="utf-8")), {}
        for name, entry in index.items():
            shape, dtype = torch.Size(entry["shape"]), getattr(torch, entry["dtype"])
            flat = torch.from_file(str(_inside(part, name)), shared=False, size=shape.numel(), dtype=dtype)
            rows[tuple(entry["key"])] = flat.reshape(shape)
        return TensorDict(rows, next(iter(rows.values())).shape[:1])


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

    def write(self, entries: Entries, draft: Path) -> None:
        """Write the entries of a part into a file."""
        columns, places = {}, {}
        for key, entry in entries.items():
            values, length, name = self._arrow.array(entry.reshape(-1).numpy()), prod(entry.shape[1:]), ".".join(key)
            columns[name] = values if length == 1 else self._arrow.FixedSizeListArray.from_arrays(values, length)
            places[name] = {"key": key, "shape": list(entry.shape[1:])}
        table = self._arrow.table(columns).replace_schema_metadata({ENTRIES: json.dumps(places)})
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
    """Name one batch on disk and say what was written.

    Attributes:
        name: of its file or folder.
        frames: its rows.
        episodes: how many ended in it.
        files: size in bytes and CRC-32 of each file, by its path in the dataset's folder.
    """

    name: str
    frames: int
    episodes: int
    files: dict[str, list[int]]


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
        values = {**vars(self), "parts": [vars(part) for part in self.parts]}
        with replacing(folder / NAME) as draft:
            draft.write_text(json.dumps(values, allow_nan=False) + "\n", encoding="utf-8")

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
        """Read the manifest in a folder.

        Raises:
            FileNotFoundError: there is none.
            ValueError: it is damaged, or of another version.
        """
        file = folder / NAME
        if not file.is_file():
            raise FileNotFoundError(f"no dataset in {folder}; `swath collect ENV --out {folder}` makes one")
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            if (found := int(values["version"])) == VERSION:
                manifest = cls(**{**values, "parts": tuple(DatasetPart(**part) for part in values["parts"])})
                for part in manifest.parts:
                    for name in (part.name, *part.files):
                        _inside(folder, name)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            why = f"{type(error).__name__}: {error}"
            raise ValueError(f"{file} is no manifest of a dataset ({why}); choose another folder") from None
        if found != VERSION:
            move = "upgrade Swath" if found > VERSION else "collect into another folder"
            raise ValueError(f"{file} has layout {found}, this Swath reads {VERSION}; {move}")
        return manifest


def _inside(folder: Path, name: str) -> Path:
    """Join a folder and the path of a file in it, as a dataset names it.

    Raises:
        ValueError: the path leads out of the folder.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"the file {name!r} is not in the folder {folder}")
    return folder / path


def _crc32(path: Path) -> int:
    """Compute the CRC-32 of a file."""
    total, chunk = 0, memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as content:
        while size := content.readinto(chunk):
            total = zlib.crc32(chunk[:size], total)
    return total


class Dataset:
    """The parts of a dataset, flat TensorDicts `[n]`, in the order in which they were collected.

    Parts are read when they are asked for; parts of a folder are memory-mapped. Files are opened read-only: what is
    written into a part that was read stays in memory.

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
        self.check(index)
        part = self.manifest.parts[index]
        try:
            rows = self._format.read(self.path / part.name)
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            why = f"{type(error).__name__}: {error}"
            raise ValueError(f"{self.path / part.name} cannot be read ({why}); {WAY_OUT}") from error
        if len(rows) != part.frames:
            raise ValueError(f"{self.path / part.name} has {len(rows)} rows, {part.frames} were written; {WAY_OUT}")
        return rows

    def __iter__(self) -> Iterator[TensorDictBase]:
        return (self[index] for index in range(len(self)))

    def check(self, index: int, *, verify: bool = False) -> None:
        """Compare the files of a part with what was written.

        Args:
            index: of the part.
            verify: compare checksums, too: all bytes are read. Sizes are always compared.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: a file has another size or checksum, or there is a pickle, which is never read.
        """
        part = self.manifest.parts[index]
        for folder, _, names in os.walk(self.path / part.name):
            for name in names:
                if name.endswith(PICKLES):
                    raise ValueError(
                        f"{Path(folder, name)} is a pickle, which is not read: it could run code; {WAY_OUT}"
                    )
        for name, (size, checksum) in part.files.items():
            file = self.path / name
            try:
                found = file.stat().st_size
            except FileNotFoundError:
                raise FileNotFoundError(f"{file} is missing; {WAY_OUT}") from None
            if found != size:
                raise ValueError(f"{file} has {found} bytes, {size} were written; {WAY_OUT}")
            if verify and (found := _crc32(file)) != checksum:
                raise ValueError(f"{file} has the checksum {found}, {checksum} was written; {WAY_OUT}")

    def load(self) -> TensorDictBase:
        """Read all rows `[frames]` into memory.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: there are no rows, or a file is damaged.
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
        sweep_drafts(folder)
        if any(folder.iterdir()):
            raise ValueError(f"{folder} has files in it, but no dataset; choose a folder that is new or empty")
        made.manifest.save(folder)
        return made

    @classmethod
    def resume(cls, path: str | Path) -> Self:
        """Go on with the dataset in a folder; what a killed writer has left beside it is removed.

        Raises:
            FileNotFoundError: there is none, or a file of it is missing.
            ImportError: a package for its format is missing.
            ValueError: a file has another size than was written, or the manifest is damaged.
        """
        made = cls(Path(path), DatasetManifest.read(Path(path)))
        for index in range(len(made)):
            made.check(index)
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
            TypeError: an entry is no tensor; datasets hold nothing that would have to be pickled.
        """
        entries, name = _tensors_of(rows), self._next_name
        remove(self.path / name)  # one that was written, and never came to count
        with replacing(self.path / name, folder=not self._format.suffix) as draft:
            self._format.write(entries, draft)
            written = {file: file.relative_to(draft) for file in (draft, *draft.rglob("*")) if file.is_file()}
            files = {(name / place).as_posix(): [file.stat().st_size, _crc32(file)] for file, place in written.items()}
        part = DatasetPart(name, len(rows), int(rows[NEXT, DONE].sum()), files)
        changed = replace(self.manifest, parts=(*self.manifest.parts, part), state=state)
        changed.save(self.path)
        self.manifest = changed

    @property
    def _next_name(self) -> str:
        return f"part-{len(self.manifest.parts):06}{self._format.suffix}"


def _tensors_of(rows: TensorDictBase) -> dict[tuple[str, ...], torch.Tensor]:
    """Collect the entries of rows by their keys.

    Raises:
        TypeError: an entry is no tensor.
    """
    entries = {}
    for key in rows.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor):
        entry = rows.get(key)
        if not isinstance(entry, torch.Tensor):
            raise TypeError(f"entry {key!r} is of type {type(entry).__name__}; datasets hold tensors: leave it out")
        entries[as_tuple(key)] = entry
    return entries


def open_dataset(path: str | Path, *, verify: bool = False) -> Dataset:
    """Open the dataset in a folder, as far as it has been written; the sizes of all files are compared.

    Args:
        path: the folder.
        verify: compare checksums, too: all bytes are read.

    Raises:
        FileNotFoundError: there is none, or a file of it is missing.
        ImportError: a package for its format is missing.
        ValueError: its manifest or a file is damaged, it is of another version, or there is a pickle in it.
    """
    data = Dataset(Path(path), DatasetManifest.read(Path(path)))
    for index in range(len(data)):
        data.check(index, verify=verify)
    return data
