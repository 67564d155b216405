"""What is delivered at once, and counted then."""

from __future__ import annotations

from typing import Any, NamedTuple

from swath.collect.counters import Episodes


class Part(NamedTuple):
    """A batch, or what is written of one at a time, and the episodes that end in it."""

    batch: Any
    episodes: Episodes
