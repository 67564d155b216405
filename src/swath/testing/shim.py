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
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import cloudpickle
import pytest
from _pytest.terminal import TerminalReporter

Table: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Modules of the other library, names in them, what takes their place."""


class Shim:
    """Replaces names, puts back what was there, and reports; its hooks are those of the plugin.

    Used by one thread.

    Args:
        plugin: the module of the plugin.
        library: in whose place our names are put.
        extra: of swath that installs it.

    Attributes:
        patch: what is put back in the end.
    """

    def __init__(self, plugin: str, library: str, extra: str) -> None:
        self._plugin, self._library, self._extra = plugin, library, extra
        self._found: bool | None = None
        self.patch = pytest.MonkeyPatch()

    def is_installed(self, package: str) -> bool:
        """Whether a package that is needed is there; `pytest_configure` refuses a run that lacks it."""
        self._found = find_spec(package) is not None
        return self._found

    def apply(self, table: Table) -> None:
        """Replace the names, in the modules that this version has."""
        with warnings.catch_warnings(action="ignore"):
            modules = {name: import_module(name) for name in table if find_spec(name)}  # all before any name is ours
        for path, module in modules.items():
            for name, value in table[path].items():
                self.patch.setattr(module, name, value, raising=False)

    def pytest_unconfigure(self) -> None:
        """Put everything back."""
        self.patch.undo()

    def pytest_configure(self) -> None:
        """Refuse a test run whose plugin could not do its work.

        Raises:
            pytest.UsageError: the library is not installed, or the plugin was named too late.
        """
        if self._found is None:
            way_out = f"name it on the command line: pytest -p {self._plugin}"
            raise pytest.UsageError(f"{self._plugin} came after the conftests were imported; {way_out}")
        if not self._found:
            raise pytest.UsageError(f"{self._plugin} needs {self._library}: install swath[{self._extra}]")

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """The score, and which tests were left out and why."""
        outcomes = ("passed", "failed", "error", "skipped")
        passed, failed, errors, skipped = (terminalreporter.stats.get(outcome, []) for outcome in outcomes)
        terminalreporter.section(f"swath in the place of {self._library}")
        score = f"{len(passed)} passed, {len(failed) + len(errors)} failed, {len(skipped)} left out"
        terminalreporter.write_line(f"score: {score}")
        for report in skipped:
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
