"""Rows from a dataset in the place of envs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from swath.rollout_workers.batches.multi_agent import concat_samples
from swath.rollout_workers.batches.sample_batch import SampleBatch


class DatasetReader:
    """Hands out rows of a shard, over and over.

    Args:
        shard: an iterable of `SampleBatch` or dicts of columns; or what has `iter_batches`, as Ray's datasets.
    """

    def __init__(self, shard: Any) -> None:
        self._shard = shard
        self._left: list[SampleBatch] = []
        self._parts: Iterator[SampleBatch] = iter(())

    def next(self, n_rows: int) -> SampleBatch:
        """The next rows, so many.

        Raises:
            ValueError: the shard has none.
        """
        while sum(part.count for part in self._left) < n_rows:
            self._left.append(self._next_part(n_rows))
        whole = concat_samples(self._left)
        assert isinstance(whole, SampleBatch)
        self._left = [whole[n_rows:]] if whole.count > n_rows else []
        return whole[:n_rows].copy()

    def _next_part(self, n_rows: int) -> SampleBatch:
        for _ in range(2):
            for part in self._parts:
                if part.count:
                    return part
            self._parts = self._pass(n_rows)
        raise ValueError(f"the dataset shard {self._shard!r} has no rows")

    def _pass(self, n_rows: int) -> Iterator[SampleBatch]:
        if hasattr(self._shard, "iter_batches"):
            parts = self._shard.iter_batches(batch_size=n_rows, batch_format="numpy")
        else:
            parts = self._shard
        return (part if isinstance(part, SampleBatch) else SampleBatch(part) for part in parts)
