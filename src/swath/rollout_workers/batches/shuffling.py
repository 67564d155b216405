"""Rows of a batch in random order."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from swath.rollout_workers.batches.columns import Columns
from swath.rollout_workers.batches.leaves import Array, Leaf, rows_of, take
from swath.rollout_workers.batches.lengths import check_rows
from swath.rollout_workers.batches.sequences import Sequences
from swath.rollout_workers.nests import map_nest


def shuffle(batch: Columns, generator: np.random.Generator | None) -> None:
    """Put the rows in one random order for all columns, in place; padded sequences stay together.

    Without a generator the order is drawn from NumPy's global state, which users seed.

    Raises:
        ValueError: columns of different lengths, or sequences without padding.
    """
    check_rows(batch)
    draw: Any = np.random.permutation if generator is None else generator.permutation
    orders = _orders(Sequences.of(batch), batch.count, draw)
    dict.update(batch, {name: map_nest(partial(_reordered, orders), column) for name, column in batch.items()})


def _orders(sequences: Sequences | None, n_rows: int, draw: Any) -> dict[int | None, Array]:
    """The new order of columns, by their length."""
    if sequences is None:
        return {n_rows: draw(n_rows)}
    if sequences.stride is None:
        raise ValueError("rows of sequences cannot be shuffled; after right_zero_pad() whole sequences can")
    order = draw(len(sequences))
    places = order[:, None] * sequences.stride + np.arange(sequences.stride)
    return {len(sequences): order, sequences.places: places.reshape(-1)}


def _reordered(orders: dict[int | None, Array], leaf: Leaf) -> Leaf:
    rows = rows_of(leaf)
    return leaf if rows is None else take(leaf, orders[rows])
