"""Looking for a package that is not installed, without searching the disk each time.

A tensordict module looks for pandas whenever it writes an output. Where pandas is missing that search costs as much as
a small network; an entry of `None` in `sys.modules` is Python's own way to say that a module cannot be had.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

_LOOKED_FOR = "pandas"


def without_searches(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same call; while it runs, a package that was not installed just now is known to be missing."""
    if _LOOKED_FOR in sys.modules or find_spec(_LOOKED_FOR) is not None:
        return call
    modules: dict[str, Any] = sys.modules

    def quick(argument: Any) -> Any:
        modules.setdefault(_LOOKED_FOR, None)
        try:
            return call(argument)
        finally:
            if modules.get(_LOOKED_FOR, call) is None:
                modules.pop(_LOOKED_FOR, None)

    return quick
