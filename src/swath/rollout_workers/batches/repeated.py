"""Lists of varying length, as padded arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class RepeatedValues:
    """One list per row, each filled up to `max_len` items.

    Attributes:
        values: arrays or tensors `[n, max_len, …]`, may be nested.
        lengths: items in each list, `[n]`.
        max_len: the most that a list can hold.
    """

    values: Any
    lengths: Any
    max_len: int
