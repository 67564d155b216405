"""The views of what a service says of itself."""

from __future__ import annotations

from typing import Any

VIEWS = ("aggregate", "per_worker", "both")


def viewed(workers: str, aggregate: dict[str, Any], per_worker: dict[str, Any]) -> dict[str, Any]:
    """The facts of one of the views.

    Raises:
        ValueError: an unknown view.
    """
    views = {"aggregate": aggregate, "per_worker": per_worker, "both": {**aggregate, **per_worker}}
    if workers not in VIEWS:
        raise ValueError(f"workers must be one of {', '.join(map(repr, VIEWS))}, got {workers!r}")
    return views[workers]
