"""Datasets of experience on disk, which are consistent at every moment, also after their writer was killed.

```
 append(rows, state) ──▶ part-000007: draft, fsync, rename ──▶ manifest, the same way: now the part is in the dataset
                              └─ killed before that: the next writer removes the part and collects again
```
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, Self

import torch
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor

from swath.extras import import_extra
from swath.keys import DONE, NEXT, as_tuple
from swath.report.atomic import remove, remove_drafts, replace_atomically
from swath.report.checkpoint import bytes_of

Entries = Mapping[tuple[str, ...], torch.Tensor]

NAME = "_manifest.json"
"""Readers of Parquet skip names that begin with an underscore."""

VERSION = 2
INDEX = "entries.json"
"""The index of a folder of memory-mapped tensors: by file, the key, dtype and shape of its entry."""

ENTRIES = b"swath.entries"
"""Metadata of a Parquet file: by column, the key and the row shape of its entry."""

UNSERVED = (".arrow", ".csv", ".feather", ".h5", ".hdf5", ".json", ".jsonl", ".npy", ".npz", ".pt", ".zarr", ".zip")
"""Suffixes of formats that are not supported."""

PICKLES = (".pickle", ".pkl")
"""Suffixes of tensordict's files of objects; reading one runs code."""

ADVICE = "put back a copy of it, or collect into another folder"

CHUNK = 2**17
"""Bytes per read for a checksum."""


class Memmap:
    """Storage of parts as folders of memory-mapped tensors, which `TensorDict.load_memmap` can read."""

    name, suffix = "memmap", ""

    def write(self, entries: Entries, draft: Path) -> None:
        """Write the entries of a part into a folder, by `write`: a full disk is an exception, not a signal.

        Raises:
            OSError: the disk is full, or does not accept the files.
        """
        try:
            layout = TensorDict(dict(entries), [len(next(iter(entries.values())))]).memmap_like(draft)
        except RuntimeError as error:  # torch cannot create a file
            raise OSError(f"{draft} could not be written: {error}") from error
        index = {}
        for key, entry in entries.items():
            file = Path(layout.get(key).filename)
            with file.open("r+b") as content:
                content.write(bytes_of(entry))
            form = {"key": key, "dtype": str(entry.dtype).removeprefix("torch."), "shape": list(entry.shape)}
            index[file.relative_to(draft.absolute()).as_posix()] = form
        (draft / INDEX).write_text(json.dumps(index), encoding="utf-8")

    def read(self, part: Path) -> TensorDictBase:
        """Map the entries of a part into memory; the files are opened read-only, and do not change."""
        index, rows = json.loads((part / INDEX).read_text(encoding="utf-8")), {}
        for name, entry in index.items():
            shape, dtype = torch.Size(entry["shape"]), getattr(torch, entry["dtype"])
            flat = torch.from_file(str(_join_path(part, name)), shared=False, size=shape.numel(), dtype=dtype)
            rows[tuple(entry["key"])] = flat.reshape(shape)
        return TensorDict(rows, next(iter(rows.values())).shape[:1])


class Parquet:
    """Storage of parts as Parquet files with one column per entry, for pandas, polars, DuckDB, Spark and others.

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
        self._arrow = import_extra("pyarrow", extra="datasets", purpose="for .parquet files")
        self._files = import_extra("pyarrow.parquet", extra="datasets", purpose="for .parquet files")

    def write(self, entries: Entries, draft: Path) -> None:
        """Write the entries of a part into a file."""
        columns, forms = {}, {}
        for key, entry in entries.items():
            values, length, name = self._arrow.array(entry.reshape(-1).numpy()), prod(entry.shape[1:]), ".".join(key)
            columns[name] = values if length == 1 else self._arrow.FixedSizeListArray.from_arrays(values, length)
            forms[name] = {"key": key, "shape": list(entry.shape[1:])}
        table = self._arrow.table(columns).replace_schema_metadata({ENTRIES: json.dumps(forms)})
        self._files.write_table(table, str(draft), compression="zstd")

    def read(self, part: Path) -> TensorDictBase:
        """Read a part into memory."""
        table = self._files.read_table(str(part), partitioning=None)
        rows = TensorDict({}, [table.num_rows])
        for name, entry in json.loads(table.schema.metadata[ENTRIES]).items():
            column = table.column(name).combine_chunks()
            flat = column.flatten() if self._arrow.types.is_fixed_size_list(column.type) else column
            values = torch.from_numpy(flat.to_numpy(zero_copy_only=False).copy())
            rows.set(tuple(entry["key"]), values.reshape(table.num_rows, *entry["shape"]))
        return rows


def storage_for(path: Path) -> Memmap | Parquet:
    """Return the storage for a dataset's path: Parquet if it ends in `.parquet`, else memory-mapped TensorDicts.

    Raises:
        ImportError: a package is missing; the message names the extra.
        ValueError: the path has the suffix of a format that is not supported.
    """
    suffix = path.suffix.lower()
    if suffix in UNSERVED:
        advice = "end it in .parquet, or in no suffix for a plain folder"
        raise ValueError(f"{path}: data cannot be written as {suffix}; {advice}")
    return Parquet() if suffix == Parquet.suffix else Memmap()


@dataclass(frozen=True)
class DatasetPart:
    """One batch on disk.

    Attributes:
        name: name of its file or folder.
        frames: number of rows.
        episodes: number of episodes that ended in it.
        files: size in bytes and CRC-32 of each file, by its path in the dataset's folder.
    """

    name: str
    frames: int
    episodes: int
    files: dict[str, list[int]]


@dataclass(frozen=True)
class DatasetManifest:
    """The contents of a dataset at one moment.

    Attributes:
        format: name of the storage of parts.
        settings: settings of the collection as plain values; data of other settings belong in another dataset.
        parts: parts in the order of collection.
        state: state of the collection after the last part, as plain values; `None` before the first part.
        version: version of this file's layout.
    """

    format: str
    settings: dict[str, Any]
    parts: tuple[DatasetPart, ...] = ()
    state: Any = None
    version: int = VERSION

    @property
    def frames(self) -> int:
        """Return the number of rows of all parts."""
        return sum(part.frames for part in self.parts)

    @property
    def episodes(self) -> int:
        """Return the number of episodes that ended in all parts."""
        return sum(part.episodes for part in self.parts)

    def save(self, folder: Path) -> None:
        """Write the manifest into the dataset's folder, in place of the old one."""
        values = {**vars(self), "parts": [vars(part) for part in self.parts]}
        with replace_atomically(folder / NAME) as draft:
            draft.write_text(json.dumps(values, allow_nan=False) + "\n", encoding="utf-8")

    @property
    def storage(self) -> Memmap | Parquet:
        """Return the storage of its parts.

        Raises:
            ImportError: a package is missing; the message names the extra.
            ValueError: the format is unknown, perhaps of a newer version.
        """
        if self.format not in (Memmap.name, Parquet.name):
            raise ValueError(f"datasets of the format {self.format!r} cannot be read by this Swath; upgrade Swath")
        return Parquet() if self.format == Parquet.name else Memmap()

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest in a folder.

        Raises:
            FileNotFoundError: there is no manifest.
            ValueError: the manifest is damaged, or of another version.
        """
        file = folder / NAME
        if not file.is_file():
            raise FileNotFoundError(f"no dataset in {folder}; `swath collect ENV --out {folder}` makes one")
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            if (version := int(values["version"])) == VERSION:
                manifest = cls(**{**values, "parts": tuple(DatasetPart(**part) for part in values["parts"])})
                for part in manifest.parts:
                    for name in (part.name, *part.files):
                        _join_path(folder, name)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"{file} is no manifest of a dataset ({reason}); choose another folder") from None
        if version != VERSION:
            advice = "upgrade Swath" if version > VERSION else "collect into another folder"
            raise ValueError(f"{file} has layout {version}, this Swath reads {VERSION}; {advice}")
        return manifest


def _join_path(folder: Path, name: str) -> Path:
    """Join a folder and the relative path of a file in it.

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
    """The parts of a dataset, flat TensorDicts `[n]`, in the order of collection.

    Parts are read at access; parts of a folder are memory-mapped. Files are opened read-only, so they never change when
    the user writes into a part.

    Args:
        path: the dataset's folder.
        manifest: contents of the dataset.

    Raises:
        ImportError: a package for its format is missing.
    """

    def __init__(self, path: Path, manifest: DatasetManifest) -> None:
        self.path, self.manifest = path, manifest
        self._storage = manifest.storage

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}: {self.frames:,} frames in {len(self)} parts>"

    @property
    def frames(self) -> int:
        """Return the number of rows of all parts."""
        return self.manifest.frames

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings of the collection."""
        return dict(self.manifest.settings)

    def __len__(self) -> int:
        return len(self.manifest.parts)

    def __getitem__(self, index: int) -> TensorDictBase:
        self.check(index)
        part = self.manifest.parts[index]
        try:
            rows = self._storage.read(self.path / part.name)
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"{self.path / part.name} cannot be read ({reason}); {ADVICE}") from error
        if len(rows) != part.frames:
            raise ValueError(f"{self.path / part.name} has {len(rows)} rows, {part.frames} were written; {ADVICE}")
        return rows

    def __iter__(self) -> Iterator[TensorDictBase]:
        return (self[index] for index in range(len(self)))

    def check(self, index: int, *, verify: bool = False) -> None:
        """Compare sizes of a part's files, and optionally their checksums, with the manifest.

        Args:
            index: number of the part.
            verify: compare checksums, too, for which all bytes are read.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: a file has another size or checksum, or is a pickle, which is never read.
        """
        part = self.manifest.parts[index]
        for folder, _, names in os.walk(self.path / part.name):
            for name in names:
                if name.endswith(PICKLES):
                    raise ValueError(
                        f"{Path(folder, name)} is a pickle, which is not read: it could run code; {ADVICE}"
                    )
        for name, (size, checksum) in part.files.items():
            file = self.path / name
            try:
                current_size = file.stat().st_size
            except FileNotFoundError:
                raise FileNotFoundError(f"{file} is missing; {ADVICE}") from None
            if current_size != size:
                raise ValueError(f"{file} has {current_size} bytes, {size} were written; {ADVICE}")
            if verify and (current := _crc32(file)) != checksum:
                raise ValueError(f"{file} has the checksum {current}, {checksum} was written; {ADVICE}")

    def load(self) -> TensorDictBase:
        """Read all rows `[frames]` into memory.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: the dataset has no rows, or a file is damaged.
        """
        if not len(self):
            raise ValueError(f"{self.path} has no parts yet; collect some first")
        rows: TensorDictBase = torch.cat(list(self), 0)
        return rows


class DatasetWriter(Dataset):
    """A dataset that batches can be appended to. The caller ensures that there is one writer. Not thread-safe.

    Use `begin` or `resume` to create one.
    """

    @classmethod
    def begin(cls, path: str | Path, settings: dict[str, Any]) -> Self:
        """Begin a dataset in a folder that is new or empty, in the format of the folder's suffix.

        Raises:
            FileExistsError: the folder has a dataset.
            ImportError: a package for this format is missing.
            ValueError: the suffix is of an unsupported format, or the folder has other files.
        """
        folder = Path(path)
        writer = cls(folder, DatasetManifest(storage_for(folder).name, settings))
        if (folder / NAME).exists():
            advice = f"DatasetWriter.resume({str(folder)!r}) goes on with it"
            raise FileExistsError(f"{folder} holds a dataset; {advice}, or choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
        remove_drafts(folder)
        if any(folder.iterdir()):
            raise ValueError(f"{folder} has files in it, but no dataset; choose a folder that is new or empty")
        writer.manifest.save(folder)
        return writer

    @classmethod
    def resume(cls, path: str | Path) -> Self:
        """Continue the dataset in a folder, and remove files that a killed writer left there.

        Raises:
            FileNotFoundError: the folder has no dataset, or a file of it is missing.
            ImportError: a package for its format is missing.
            ValueError: a file has a wrong size, or the manifest is damaged.
        """
        writer = cls(Path(path), DatasetManifest.read(Path(path)))
        for index in range(len(writer)):
            writer.check(index)
        remove_drafts(writer.path)
        remove(writer.path / writer._next_name)
        return writer

    def append(self, rows: TensorDictBase, state: Any) -> None:
        """Append a batch durably: when this returns, a crash of the process or the machine cannot remove it.

        Args:
            rows: `[n]`, on the CPU.
            state: state of the collection after the batch, as plain values.

        Raises:
            OSError: the batch could not be written; the dataset does not change.
            TypeError: an entry is no tensor: datasets hold no values that need pickling.
        """
        entries, name = _tensors_of(rows), self._next_name
        remove(self.path / name)  # a failed append may have left it
        with replace_atomically(self.path / name, folder=not self._storage.suffix) as draft:
            self._storage.write(entries, draft)
            paths = {file: name / file.relative_to(draft) for file in (draft, *draft.rglob("*")) if file.is_file()}
            files = {path.as_posix(): [file.stat().st_size, _crc32(file)] for file, path in paths.items()}
        part = DatasetPart(name, len(rows), int(rows[NEXT, DONE].sum()), files)
        manifest = replace(self.manifest, parts=(*self.manifest.parts, part), state=state)
        manifest.save(self.path)
        self.manifest = manifest

    @property
    def _next_name(self) -> str:
        return f"part-{len(self.manifest.parts):06}{self._storage.suffix}"


def _tensors_of(rows: TensorDictBase) -> dict[tuple[str, ...], torch.Tensor]:
    """Return the entries of rows by their keys.

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
    """Open the dataset in a folder, with all parts written so far, and compare the sizes of their files.

    Args:
        path: the folder.
        verify: compare checksums, too, for which all bytes are read.

    Raises:
        FileNotFoundError: the folder has no dataset, or a file of it is missing.
        ImportError: a package for its format is missing.
        ValueError: its manifest or a file is damaged, it is of another version, or it has a pickle.
    """
    data = Dataset(Path(path), DatasetManifest.read(Path(path)))
    for index in range(len(data)):
        data.check(index, verify=verify)
    return data
