"""What `seq_lens` says about the rows of a batch.

seq_lens 2 3 1     rows  a a b b b c            not padded: one sequence behind the other
                   rows  a a . b b b c . .      padded to 3: each takes as many places
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from swath.rollout_workers.batches.columns import Columns
from swath.rollout_workers.batches.leaves import Array, as_array
from swath.rollout_workers.batches.names import ColumnNames


@dataclass(frozen=True)
class Sequences:
    """How rows are divided into sequences.

    Attributes:
        lengths: rows of each, `[n]`.
        stride: places that each takes; None if they take as many as they have rows.
    """

    lengths: Array
    stride: int | None = None

    @classmethod
    def of(cls, batch: Columns) -> Sequences | None:
        """The sequences of a batch; None if it has none."""
        seq_lens = dict.get(batch, ColumnNames.SEQ_LENS)
        if seq_lens is None:
            return None
        lengths = as_array(seq_lens).astype(np.int64).reshape(-1)
        return cls(lengths, batch.max_seq_len if batch.zero_padded else None)

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def ends(self) -> Array:
        """Behind which row each sequence ends, `[n]`."""
        return np.cumsum(self.lengths)

    @property
    def starts(self) -> Array:
        """At which row each sequence begins, `[n]`."""
        return self.ends - self.lengths

    @property
    def total(self) -> int:
        """Rows of all."""
        return int(self.lengths.sum())

    @property
    def places(self) -> int:
        """Rows that a column has: as many as there are, or with those behind the ends."""
        return self.total if self.stride is None else len(self) * self.stride

    def place_of_rows(self) -> Array:
        """Where in a column each row is, `[total]`."""
        begins = self.starts if self.stride is None else np.arange(len(self)) * self.stride
        places: Array = np.arange(self.total) + np.repeat(begins - self.starts, self.lengths)
        return places

    def before(self, row: int) -> int:
        """How many sequences lie wholly before a row."""
        return int(np.searchsorted(self.ends, row, side="right")) if row > 0 else 0

    def place(self, sequence: int) -> int:
        """Where in a column a sequence begins, or would begin behind the last one."""
        return int(self.lengths[:sequence].sum()) if self.stride is None else sequence * self.stride


def place_of_rows(batch: Columns) -> Array:
    """Where in the columns of a batch each of its rows is, `[count]`."""
    sequences = Sequences.of(batch)
    return np.arange(batch.count) if sequences is None else sequences.place_of_rows()
