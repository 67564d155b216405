"""Lazy loading of a package's public names at first use (PEP 562), so that its import is quick."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

NOTHING: Mapping[str, str] = {}


def lazy(
    package: str, modules: Mapping[str, str], replaced: Mapping[str, str] = NOTHING
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package that re-exports the names in its `__all__`.

    Define them for the interpreter only: with them, type checkers would accept any name.

    Args:
        package: its `__name__`.
        modules: module of each public name, in full or, beginning with a dot, inside the package.
        replaced: advice for names that users may look for here.
    """

    def load(name: str) -> Any:
        if name in replaced:
            raise AttributeError(f"module {package!r} has no {name}: {replaced[name]}", name=name)
        if name not in modules:
            public = ", ".join(sorted(modules))
            raise AttributeError(f"module {package!r} has no attribute {name!r}; public names: {public}", name=name)
        value = getattr(import_module(modules[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted(vars(sys.modules[package])["__all__"])
