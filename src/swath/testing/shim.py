"""Our names in the places of another library's, for as long as a test run lasts: what both plugins of pytest do.

    {"package.module": {"Name": ours}} ──▶ apply ──▶ package.module.Name is ours ──▶ undo ──▶ as it was

A module that imported a name before keeps what was there then; so apply before test modules are imported.
"""

from __future__ import annotations

import sys
import tomllib
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import cloudpickle
import pytest
from _pytest.terminal import TerminalReporter

Table: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Modules of the other library, names in them, what takes their place."""

Lent: TypeAlias = Mapping[Any, Mapping[str, Any]]
"""Classes of ours, names of attributes that they get meanwhile, what these are."""


class Shim:
    """Replaces names, puts back what was there, and reports; its hooks are those of the plugin.

    Used by one thread.

    Args:
        plugin: the module of the plugin.
        library: in whose place our names are put.
        extra: of swath that installs it.

    Attributes:
        swapped: a line on each name that was replaced.
    """

    def __init__(self, plugin: str, library: str, extra: str) -> None:
        self._plugin, self._library, self._extra = plugin, library, extra
        self._missing: ModuleNotFoundError | None = None
        self._patch = pytest.MonkeyPatch()
        self.swapped: list[str] = []

    def is_installed(self, module: str) -> bool:
        """Import a module of the library, without its warnings; `pytest_configure` refuses a run that lacks it."""
        try:
            with warnings.catch_warnings(action="ignore"):
                import_module(module)
        except ModuleNotFoundError as error:
            self._missing = error
        return self._missing is None

    def apply(self, table: Table, lent: Lent) -> None:
        """Replace the names.

        Raises:
            ModuleNotFoundError: a module of the table is not there.
        """
        with warnings.catch_warnings(action="ignore"):
            modules = {name: import_module(name) for name in table}  # all before any of their names is ours
            for module, names in table.items():
                for name, value in names.items():
                    home = value.__module__ if value.__module__.startswith("swath.testing") else "swath"
                    self.swapped.append(f"{module}.{name} was {home}.{value.__name__}")
                    self._patch.setattr(modules[module], name, value, raising=False)
        for owner, attributes in lent.items():
            for name, value in attributes.items():
                self._patch.setattr(owner, name, value, raising=False)

    def undo(self) -> None:
        """Put everything back; twice is fine."""
        self._patch.undo()

    def pytest_configure(self) -> None:
        """Refuse a test run whose plugin could not do its work.

        Raises:
            pytest.UsageError: the library cannot be imported, or the plugin was named too late.
        """
        if self._missing is not None:
            raise pytest.UsageError(
                f"{self._plugin} puts names into {self._library}, which cannot be imported ({self._missing}); "
                f"install swath[{self._extra}]"
            )
        if not self.swapped:
            raise pytest.UsageError(
                f"{self._plugin} came after the conftests were imported; "
                f"name it on the command line: pytest -p {self._plugin}"
            )

    def pytest_report_header(self) -> str:
        """Say that the tests do not run on what they name."""
        return f"swath: in the place of {self._library}; the score is at the end"

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """The score, and which tests were left out and why."""
        stats = {
            outcome: terminalreporter.stats.get(outcome, []) for outcome in ("passed", "failed", "error", "skipped")
        }
        passed, failed, errors, skipped = (len(reports) for reports in stats.values())
        terminalreporter.section(f"swath in the place of {self._library}")
        terminalreporter.write_line(f"score: {passed} passed, {failed + errors} failed, {skipped} left out")
        for report in stats["skipped"]:
            reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
            terminalreporter.write_line(f"left out: {report.nodeid}: {str(reason).removeprefix('Skipped: ')}")


def tables(module: str) -> dict[str, Any]:
    """What `tables.toml` says, beside the file of a module."""
    return tomllib.loads(Path(module).with_name("tables.toml").read_text())


def ours(names: str, *homes: Any) -> dict[str, Any]:
    """What has these names, in the first home that has it."""
    return {name: next(getattr(home, name) for home in homes if hasattr(home, name)) for name in names.split()}


def pickle_by_value(module: ModuleType) -> None:
    """Send what is in a module whole from now on, since other processes could not import it; through Ray too."""
    cloudpickle.register_pickle_by_value(module)
    if "ray.cloudpickle" in sys.modules:  # Ray has a cloudpickle of its own
        sys.modules["ray.cloudpickle"].register_pickle_by_value(module)
