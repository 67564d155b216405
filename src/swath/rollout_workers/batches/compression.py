"""Columns as LZ4 frames, row by row or whole.

[n, …] ──by row──▶ n frames in an array of objects, which can be sliced          ──whole──▶ one frame
"""

from __future__ import annotations

import pickle
from collections.abc import Collection
from typing import Any

import numpy as np

from swath.extras import need
from swath.rollout_workers.batches.columns import Columns
from swath.rollout_workers.batches.counting import attempt_count_timesteps
from swath.rollout_workers.batches.leaves import Leaf, object_array
from swath.rollout_workers.nests import map_nest

_FRAME = b"\x04\x22\x4d\x18"
"""How an LZ4 frame begins (LZ4 frame format, 1.6.4)."""


def pack(data: Any) -> bytes:
    """The object as an LZ4 frame.

    Raises:
        ImportError: LZ4 is not installed.
    """
    frame: bytes = _lz4().compress(pickle.dumps(data, protocol=5))
    return frame


def unpack(data: Any) -> Any:
    """The object that `pack` was given; what is not packed is returned as it is. Unpacks pickles: trust the source.

    Raises:
        ImportError: LZ4 is not installed.
    """
    return pickle.loads(_lz4().decompress(data)) if is_compressed(data) else data  # noqa: S301  said above


def is_compressed(data: Any) -> bool:
    """Whether it is what `pack` makes."""
    return isinstance(data, bytes) and data.startswith(_FRAME)


def compress(batch: Columns, *, bulk: bool, columns: Collection[str]) -> None:
    """Pack these columns in place, row by row or whole; names that the batch has not are passed over.

    Raises:
        TypeError: a column holds something else than NumPy arrays.
    """
    rows = batch.count
    packed = {
        name: map_nest(lambda leaf, name=name: _packed(name, leaf, bulk=bulk), column)
        for name, column in batch.items()
        if name in columns
    }
    dict.update(batch, packed)
    batch.packed_rows = rows


def decompress(batch: Columns, columns: Collection[str]) -> None:
    """Unpack these columns in place, where they are packed."""
    dict.update(batch, {name: map_nest(_unpacked, column) for name, column in batch.items() if name in columns})
    if attempt_count_timesteps(batch):
        batch.packed_rows = None


def _packed(name: str, leaf: Leaf, *, bulk: bool) -> Any:
    if is_compressed(leaf) or _is_packed_by_row(leaf):
        return leaf
    if not isinstance(leaf, np.ndarray) or leaf.dtype == object:
        raise TypeError(f"column {name!r} holds {_kind(leaf)}; only NumPy arrays of numbers or text are compressed")
    if bulk:
        return pack(leaf)
    return object_array([pack(row) for row in leaf]) if leaf.ndim and len(leaf) else leaf


def _unpacked(leaf: Leaf) -> Any:
    if _is_packed_by_row(leaf):
        return np.stack([unpack(row) for row in leaf])
    return unpack(leaf) if is_compressed(leaf) else leaf


def _is_packed_by_row(leaf: Leaf) -> bool:
    return (
        isinstance(leaf, np.ndarray) and leaf.dtype == object and leaf.ndim == 1 and any(map(is_compressed, leaf[:1]))
    )


def _kind(leaf: Leaf) -> str:
    return "objects" if isinstance(leaf, np.ndarray) else type(leaf).__name__


def _lz4() -> Any:
    return need("lz4.frame", extra="lz4", why="to compress columns")
