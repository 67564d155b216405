"""How many rows a dict of columns has."""

from __future__ import annotations

from numbers import Number
from typing import Any

import numpy as np

from swath.rollout_workers.batches.leaves import is_array, leaves
from swath.rollout_workers.batches.names import STATE_IN, STATE_OUT, ColumnNames

_NOT_COUNTED = (ColumnNames.INFOS, ColumnNames.SEQ_LENS)


def attempt_count_timesteps(tensor_dict: dict[str, Any]) -> int:
    """The sum of `seq_lens`, else the rows of the first column that can be counted, else 0.

    Columns named `infos`, `state_in_…` and `state_out_…` are not counted. Of a nested column the first leaf is.
    """
    in_sequences = rows_in_sequences(dict.get(tensor_dict, ColumnNames.SEQ_LENS))
    if in_sequences is not None:
        return in_sequences
    countable = (
        column
        for name, column in tensor_dict.items()
        if name not in _NOT_COUNTED and not name.startswith((STATE_IN, STATE_OUT))
    )
    return next(filter(None, map(_rows, countable)), 0)


def rows_in_sequences(seq_lens: Any) -> int | None:
    """The sum of `seq_lens`; None where they are missing or empty."""
    return int(sum(seq_lens) if isinstance(seq_lens, list) else seq_lens.sum()) if _is_filled(seq_lens) else None


def _is_filled(seq_lens: Any) -> bool:
    return seq_lens is not None and len(seq_lens) > 0


def _rows(column: Any) -> int:
    leaf: Any = next((leaf for _, leaf in leaves(column)), None)
    if isinstance(leaf, list | Number):
        leaf = np.array(leaf)
    return int(leaf.shape[0]) if is_array(leaf) and leaf.ndim else 0
