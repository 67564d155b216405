"""Our names in the places of another library's, for as long as a test run lasts.

    {"package.module": {"Name": ours}} ──▶ apply ──▶ package.module.Name is ours ──▶ undo ──▶ as it was

Whoever imported a name before keeps what was there then; so apply before test modules are imported.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import pytest

_ABSENT = object()

Table = Mapping[str, Mapping[str, Any]]
"""Modules of the other library, names in them, what takes their place."""

Lent = Mapping[Any, Mapping[str, Any]]
"""Classes of ours, names of attributes, what these are."""


class Swap:
    """Replaces names, and puts back what was there.

    Used by one thread.

    Args:
        table: what to put where.
        lent: attributes that classes of ours get meanwhile.

    Attributes:
        swapped: a line on each name that was replaced.
    """

    def __init__(self, table: Table, lent: Lent) -> None:
        self._table = table
        self._lent = lent
        self._before: list[tuple[Any, str, Any]] = []
        self.swapped: list[str] = []

    def apply(self) -> None:
        """Replace the names.

        Raises:
            ModuleNotFoundError: a module of the table is not there.
        """
        with warnings.catch_warnings(action="ignore"):  # what it says of itself while it is imported
            modules = {name: import_module(name) for name in self._table}
        for module, names in self._table.items():
            for name, ours in names.items():
                self.swapped.append(f"{module}.{name} was {_said(ours)}")
                self._set(modules[module], name, ours)
        for owner, attributes in self._lent.items():
            for name, value in attributes.items():
                self._set(owner, name, value)

    def undo(self) -> None:
        """Put everything back; twice is fine."""
        while self._before:
            owner, name, value = self._before.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)

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
