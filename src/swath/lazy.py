"""Public names of a package that are loaded at first use (PEP 562), so that its import costs next to nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

NOTHING: Mapping[str, str] = {}


def lazy(
    package: str, homes: Mapping[str, str], gone: Mapping[str, str] = NOTHING
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of a package that hands on the names in its `__all__`.

    Type checkers must not see them, or they would not see which names there are not.

    Args:
        package: its `__name__`.
        homes: by public name the module where it is, in full or, beginning with a dot, inside the package.
        gone: by name that users may look for here, what to use instead.
    """

    def load(name: str) -> Any:
        home = homes.get(name)
        if name in gone:
            raise AttributeError(f"module {package!r} has no {name}: {gone[name]}", name=name)
        if home is None:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}; public names: {', '.join(sorted(homes))}", name=name
            )
        value = getattr(import_module(home, package), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted(vars(sys.modules[package])["__all__"])
