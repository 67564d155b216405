"""How the rows of a part are written: the protocol, and the format that a path asks for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from swath.report.datasets.memmap import Memmap
from swath.report.datasets.parquet import Parquet

if TYPE_CHECKING:
    from tensordict import TensorDictBase

UNSERVED = (".arrow", ".csv", ".feather", ".h5", ".hdf5", ".json", ".jsonl", ".npy", ".npz", ".pt", ".zarr", ".zip")
"""Suffixes that ask for what is not written here."""


class Format(Protocol):
    """Writes and reads parts, flat TensorDicts `[n]` of tensors on the CPU."""

    @property
    def name(self) -> str:
        """What a manifest calls it."""

    @property
    def suffix(self) -> str:
        """Of a part's name."""

    def write(self, rows: TensorDictBase, part: Path) -> None:
        """Write a part that is not there yet; it appears whole or not at all.

        Raises:
            OSError: it cannot be written.
            TypeError: an entry that the format has no place for.
        """

    def read(self, part: Path) -> TensorDictBase:
        """The rows of a part, as they were written."""


def format_at(path: Path) -> Format:
    """What a dataset's path asks for: Parquet if it ends in `.parquet`, else memory-mapped TensorDicts.

    Raises:
        ImportError: a package is missing; the message names the extra.
        ValueError: the path asks for something else.
    """
    suffix = path.suffix.lower()
    if suffix in UNSERVED:
        raise ValueError(
            f"{path}: data cannot be written as {suffix}; end it in .parquet, or in no suffix for a plain folder"
        )
    return Parquet() if suffix == Parquet.suffix else Memmap()


def format_named(name: str) -> Format:
    """The format that a manifest names.

    Raises:
        ImportError: a package is missing; the message names the extra.
        ValueError: there is none of this name.
    """
    for kind in (Memmap, Parquet):
        if kind.name == name:
            made: Format = kind()
            return made
    raise ValueError(f"datasets of the format {name!r} cannot be read by this Swath; upgrade Swath")
