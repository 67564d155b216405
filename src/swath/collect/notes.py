"""Notes on exceptions of user code: they leave as their own type and say where they happened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def noted(what: str) -> Iterator[None]:
    """Add to an exception by what it was raised."""
    try:
        yield
    except Exception as error:
        error.add_note(f"raised by {what}")
        raise
