"""Parts as Parquet files, for pandas, polars, DuckDB, Spark and the like.

```
 "reward" [n, 1] ─────────────────▶ column "reward", one number per row
 "observation" [n, 4] ────────────▶ column "observation", a list of 4 numbers per row
 ("next", "observation") [n, 2, 3] ▶ column "next.observation", a list of 6; the shape is in the file's metadata
```
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor

from swath.extras import need
from swath.keys import as_tuple
from swath.report.atomic import replacing

if TYPE_CHECKING:
    from swath.keys import Key

ENTRIES = b"swath.entries"
"""Metadata of a file: by column, the key of the entry and the shape of one row of it."""


class Parquet:
    """One file per part, one column per entry.

    Raises:
        ImportError: pyarrow is not installed.
    """

    name: ClassVar[str] = "parquet"
    suffix: ClassVar[str] = ".parquet"

    def __init__(self) -> None:
        self._arrow = need("pyarrow", extra="datasets", why="for .parquet files")
        self._files = need("pyarrow.parquet", extra="datasets", why="for .parquet files")

    def write(self, rows: TensorDictBase, part: Path) -> None:
        """Write the part."""
        columns, entries = {}, {}
        for key in rows.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor):
            entry, column = _tensor(key, rows.get(key)), column_of(key)
            columns[column] = self._column(entry)
            entries[column] = {"key": as_tuple(key), "shape": list(entry.shape[1:])}
        table = self._arrow.table(columns).replace_schema_metadata({ENTRIES: json.dumps(entries)})
        with replacing(part) as draft:
            self._files.write_table(table, str(draft), compression="zstd")

    def read(self, part: Path) -> TensorDictBase:
        """The part, in memory."""
        table = self._files.read_table(str(part), partitioning=None)
        rows = TensorDict({}, [table.num_rows])
        for name, entry in json.loads(table.schema.metadata[ENTRIES]).items():
            values = self._values(table.column(name).combine_chunks())
            rows.set(tuple(entry["key"]), values.reshape(table.num_rows, *entry["shape"]))
        return rows

    def _column(self, entry: torch.Tensor) -> Any:
        values = self._arrow.array(entry.reshape(-1).numpy())
        length = prod(entry.shape[1:])
        return values if length == 1 else self._arrow.FixedSizeListArray.from_arrays(values, length)

    def _values(self, column: Any) -> torch.Tensor:
        flat = column.flatten() if self._arrow.types.is_fixed_size_list(column.type) else column
        return torch.from_numpy(flat.to_numpy(zero_copy_only=False).copy())


def column_of(key: Key) -> str:
    """What the column of an entry is called: `"next.reward"`."""
    return ".".join(as_tuple(key))


def _tensor(key: Key, entry: Any) -> torch.Tensor:
    if isinstance(entry, torch.Tensor):
        return entry
    raise TypeError(f"entry {key!r} is of type {type(entry).__name__}; Parquet files hold tensors: leave it out")
