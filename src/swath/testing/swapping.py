"""Our names in the places of another library's, for as long as a test run lasts, with a count of their uses.

    {"package.module": {"Name": ours}} ──▶ apply ──▶ package.module.Name is ours ──▶ undo ──▶ as it was

Whoever imported a name before keeps what was there then; so apply before test modules are imported.
"""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

import pytest

_ABSENT = object()

Table = Mapping[str, Mapping[str, Any]]
"""Modules of the other library, names in them, what takes their place."""

Lent = Mapping[Any, Mapping[str, Any]]
"""Classes of ours, names of attributes, what these are."""


@dataclass(frozen=True)
class Swapped:
    """A name that was replaced.

    Attributes:
        module: where.
        name: which.
        ours: what is there now, by its own name.
        uses: how often it was called, under whichever of its names; for a class, how many were built, also of classes
            derived from it. `None` if that is not counted: a base class without a constructor.
    """

    module: str
    name: str
    ours: str
    uses: int | None


class Swap:
    """Replaces names, counts how often what is there now is used, and puts back what was there.

    Used by one thread.

    Args:
        table: what to put where.
        lent: attributes that classes of ours get meanwhile.
        absent_too: also put what the other library does not have; otherwise that is left out.
    """

    def __init__(self, table: Table, lent: Lent | None = None, *, absent_too: bool = False) -> None:
        self._table = table
        self._lent = lent or {}
        self._absent_too = absent_too
        self._before: list[tuple[Any, str, Any]] = []
        self._places: list[tuple[str, str, Any]] = []
        self._uses: Counter[Any] = Counter()
        self._counted: dict[Any, Any] = {}

    def apply(self) -> None:
        """Replace the names.

        Raises:
            ModuleNotFoundError: a module of the table is not there.
        """
        with warnings.catch_warnings(action="ignore"):  # what it says of itself while it is imported
            modules = {name: import_module(name) for name in self._table}
        for module, name, ours in self._there(modules):
            self._places.append((module, name, ours))
            self._set(modules[module], name, self._counting(ours))
        for owner, attributes in self._lent.items():
            for name, value in attributes.items():
                self._set(owner, name, value)

    def undo(self) -> None:
        """Put everything back; twice is fine. Counts are kept."""
        while self._before:
            owner, name, value = self._before.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)

    def swapped(self) -> list[Swapped]:
        """What was replaced, in the table's order."""
        return [
            Swapped(module, name, _said(ours), self._uses[ours] if ours in self._counted else None)
            for module, name, ours in self._places
        ]

    def kept(self) -> list[tuple[str, str]]:
        """Module and name of what the table's modules offer and is still the other library's."""
        mine = {(module, name) for module, name, _ in self._places}
        offered = ((module, name) for module in self._table for name in _public(import_module(module)))
        return [place for place in offered if place not in mine]

    def _there(self, modules: Mapping[str, ModuleType]) -> Iterator[tuple[str, str, Any]]:
        for module, names in self._table.items():
            for name, ours in names.items():
                if self._absent_too or name in vars(modules[module]):
                    yield module, name, ours

    def _counting(self, ours: Any) -> Any:
        if ours not in self._counted:
            if isinstance(ours, FunctionType):
                self._counted[ours] = self._count(ours, ours)
                self._set(
                    import_module(ours.__module__), ours.__name__, self._counted[ours]
                )  # where pickle looks for it
            elif ours.__init__ is not object.__init__:
                self._set(ours, "__init__", self._count(ours.__init__, ours))
                self._counted[ours] = ours
        return self._counted.get(ours, ours)

    def _count(self, call: Callable[..., Any], ours: Any) -> Any:
        @functools.wraps(call)
        def counting(*args: Any, **kwargs: Any) -> Any:
            self._uses[ours] += 1
            return call(*args, **kwargs)

        return counting

    def _set(self, owner: Any, name: str, value: Any) -> None:
        self._before.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)


def require_swapped(plugin: str, library: str, extra: str, missing: str | None, *, swapped: bool) -> None:
    """Refuse a test run whose plugin could not do its work.

    Args:
        plugin: the module of the plugin.
        library: in whose place our names are put.
        extra: of swath that installs it.
        missing: why it cannot be imported, if so.
        swapped: whether the names were replaced, before the conftests were imported.

    Raises:
        pytest.UsageError: they were not.
    """
    if missing is not None:
        raise pytest.UsageError(
            f"{plugin} puts names into {library}, which cannot be imported ({missing}); install swath[{extra}]"
        )
    if not swapped:
        raise pytest.UsageError(
            f"{plugin} came after the conftests were imported; name it on the command line: pytest -p {plugin}"
        )


def _said(ours: Any) -> str:
    """By what name users have it; what only tests need has that of its place."""
    return f"{ours.__module__ if ours.__module__.startswith('swath.testing') else 'swath'}.{ours.__name__}"


def _public(module: ModuleType) -> list[str]:
    with suppress(AttributeError):
        return sorted(module.__all__)
    of_its_own = (name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__)
    return sorted(name for name in of_its_own if not name.startswith("_"))
