"""Lazy loading of a package's public names at first use (PEP 562), so that its import is quick.

__init__.pyi   from swath.options import Restarts as Restarts   read by type checkers, and by `lazy`
__init__.py    __getattr__, __dir__, __all__ = lazy(__name__, __file__)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

NOTHING: Mapping[str, str] = {}


def lazy(
    package: str, file: str, replaced: Mapping[str, str] = NOTHING
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package that re-exports the names in its stub file.

    Args:
        package: its `__name__`.
        file: its `__file__`; the stub file is in the same folder.
        replaced: advice for names that users may look for here.
    """
    stub = Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    modules = {
        name: module for module, name in re.findall(r"^from (\S+) import (?:\(\s+)?(\w+) as ", stub, re.MULTILINE)
    }
    public = sorted(modules)

    def load(name: str) -> Any:
        if name in replaced:
            raise AttributeError(f"module {package!r} has no {name}: {replaced[name]}", name=name)
        if name not in modules:
            names = ", ".join(public)
            raise AttributeError(f"module {package!r} has no attribute {name!r}; public names: {names}", name=name)
        value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: list(public), public
