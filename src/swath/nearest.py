"""What may have been meant by a name that there is not."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def suggestion(name: str, names: Iterable[str]) -> str:
    """The end of a message: `; did you mean 'envs'?` if one of the names is near, else nothing."""
    near = get_close_matches(name, names, n=1, cutoff=0.7)
    return f"; did you mean {near[0]!r}?" if near else ""
