"""How settings are added to that are dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def shallow(present: Any, given: Any) -> Any:
    """The present dict with the given names replaced; anything that is no dict replaces it."""
    return {**present, **given} if isinstance(present, Mapping) and isinstance(given, Mapping) else given


def deep(present: Any, given: Any) -> Any:
    """The same, dict by dict."""
    if not isinstance(present, dict) or not isinstance(given, Mapping):
        return given
    return {**present, **{name: deep(present.get(name), value) for name, value in given.items()}}
