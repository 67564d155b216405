"""Modules of another library that is not there, or not any more: made when they are imported.

from library.old.place import Name, Other ──▶ the module is made ──▶ Name: what it is filled with
                                                                 └─▶ Other: stands for what is missing, until used
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from swath.testing.by_value import pickle_by_value

Filling = Mapping[str, Mapping[str, Any]]
"""Modules, names in them, what these are."""

Files = Callable[[str], Path | None]
"""Where the source of a module is, if it is somewhere."""


class MadeModules(MetaPathFinder, Loader):
    """Makes modules below some packages: of a file, if there is one, else with what they are filled with.

    Any other name that is asked of a module that was made is a class that cannot be used: a test that imports it can be
    collected, and fails where it needs it.

    Args:
        roots: packages, themselves included.
        filling: what is in which module.
        files: of which file a module is made.
    """

    def __init__(self, roots: Sequence[str], filling: Filling, files: Files) -> None:
        self._roots = tuple(roots)
        self._filling = filling
        self._files = files
        self._made: set[str] = set()

    def install(self, *, first: bool) -> None:
        """Make modules from now on: all of them, or only those that nobody else has.

        Args:
            first: all. Those that have been imported before are forgotten.
        """
        if first:
            for name in [name for name in sys.modules if self._below_roots(name)]:
                del sys.modules[name]
        sys.meta_path.insert(0 if first else len(sys.meta_path), self)

    def remove(self) -> None:
        """Make none any more, and forget those that were made; twice is fine."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for name in self._made & sys.modules.keys():
            parent, _, last = name.rpartition(".")
            vars(sys.modules.get(parent, ModuleType(parent))).pop(last, None)
            del sys.modules[name]

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        """Of a module that is below the roots."""
        if not self._below_roots(fullname):
            return None
        self._made.add(fullname)
        if (file := self._files(fullname)) is not None:
            return spec_from_file_location(fullname, file, loader=_ByValue(fullname, str(file)))
        return spec_from_loader(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """Fill it."""
        vars(module).update(self._filling.get(module.__name__, {}))
        vars(module)["__getattr__"] = partial(_asked, module.__name__)

    def _below_roots(self, name: str) -> bool:
        return any(name == root or name.startswith(f"{root}.") for root in self._roots)


class _ByValue(SourceFileLoader):
    """Other processes have no such module: what is in it travels whole."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        pickle_by_value(module)


def _asked(owner: str, name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(f"module {owner!r} has no attribute {name!r}")
    return type(name, (), {"__module__": owner, "__new__": partial(_refuse, f"{owner}.{name}")})


def _refuse(name: str, *_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError(f"{name} is not installed, and swath has nothing in its place")
