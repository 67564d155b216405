"""Our names in the places of another library's, for as long as a test run lasts: what both plugins of pytest do.

    {"package.module": {"Name": ours}} ──▶ apply ──▶ package.module.Name is ours ──▶ undo ──▶ as it was

A module that imported a name before keeps what was there then; so apply before test modules are imported.
"""

from __future__ import annotations

import os
import sys
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from inspect import getsource
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import cloudpickle
import pytest
from _pytest.terminal import TerminalReporter

FOLDER = Path(__file__).parent

Table: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Modules of the other library, names in them, what takes their place."""


class Shim:
    """Replaces names, puts back what was there, and reports; its hooks are those of the plugin.

    Used by one thread.

    Args:
        plugin: the module of the plugin; beside its file is `tables.toml`.
        library: in whose place our names are put.
        package: that is needed, and the extra of swath that installs it.
        homes: where our names are, after that module; the first that has a name counts.

    Attributes:
        table: what takes the place of what, as `tables.toml` says.
        left_out: tests that are not run, by the end of their file's path and by name, each with the reason.
        unsupported: texts in the source of tests that are not run, whatever they are called, each with the reason.
        patch: what is put back in the end.
    """

    def __init__(self, plugin: str, library: str, package: str, *homes: Any) -> None:
        self._plugin, self._library, self._package = plugin, library, package
        self._found: bool | None = None
        self.patch = pytest.MonkeyPatch()
        homes = sys.modules[plugin], *homes
        tables = tomllib.loads(Path(homes[0].__file__).with_name("tables.toml").read_text())
        self.left_out: Mapping[str, Mapping[str, str]] = tables.get("left_out", {})
        self.unsupported: Mapping[str, str] = tables.get("unsupported", {})
        self.table: Table = {
            module: {entry.partition("=")[0]: _named(entry.rpartition("=")[2], homes) for entry in entries.split()}
            for module, entries in tables["names"].items()
        }

    def is_installed(self) -> bool:
        """Whether the package is there; `pytest_configure` refuses a run that lacks it."""
        self._found = find_spec(self._package) is not None
        return self._found

    def apply(self) -> None:
        """Replace the names, in the modules that this version has."""
        with warnings.catch_warnings(action="ignore"):
            modules = {name: import_module(name) for name in self.table if find_spec(name)}  # before any name is ours
        for path, module in modules.items():
            for name, value in self.table[path].items():
                self.patch.setattr(module, name, value, raising=False)

    def reach_children(self) -> None:
        """Have Python processes that start from now on replace the names too, Ray's workers included."""
        self.patch.setenv("SWATH_PEERS", f"{self._package}={self._plugin}")
        for folder in (FOLDER.parent, FOLDER / "startup"):
            self.patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what is listed; send what test modules have to other processes whole, where these names are not."""
        for item in items:
            if reason := next(self._reasons(item), None):
                item.add_marker(pytest.mark.skip(reason=reason))
            if isinstance(item, pytest.Function):
                pickle_by_value(item.module)

    def _reasons(self, item: pytest.Item) -> Iterator[str]:
        """Find why a test is not run: by its name, and by what its source says, which stays when tests are renamed."""
        for file, reasons in self.left_out.items():
            if item.path.as_posix().endswith(f"/{file}") and item.name in reasons:
                yield reasons[item.name]
        source = getsource(item.function) if isinstance(item, pytest.Function) else ""
        yield from (reason for use, reason in self.unsupported.items() if use in source)

    def pytest_configure(self) -> None:
        """Refuse a test run whose plugin could not do its work.

        Raises:
            pytest.UsageError: the library is not installed, or the plugin was named too late.
        """
        if self._found is None:
            way_out = f"name it on the command line: pytest -p {self._plugin}"
            raise pytest.UsageError(f"{self._plugin} came after the conftests were imported; {way_out}")
        if not self._found:
            raise pytest.UsageError(f"{self._plugin} needs {self._library}: install swath[{self._package}]")

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """The score, and which tests were left out and why."""
        stats = terminalreporter.stats
        passed, failed, errors, skipped = (stats.get(what, []) for what in ("passed", "failed", "error", "skipped"))
        terminalreporter.section(f"swath in the place of {self._library}")
        score = f"{len(passed)} passed, {len(failed) + len(errors)} failed, {len(skipped)} left out"
        terminalreporter.write_line(f"score: {score}")
        for report in skipped:
            reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
            terminalreporter.write_line(f"left out: {report.nodeid}: {str(reason).removeprefix('Skipped: ')}")


def _named(name: str, homes: Sequence[Any]) -> Any:
    """What has this name in the first of the homes that has it."""
    return next(getattr(home, name) for home in homes if hasattr(home, name))


def pickle_by_value(module: ModuleType) -> None:
    """Send what is in a module whole from now on, since other processes could not import it; through Ray too."""
    cloudpickle.register_pickle_by_value(module)
    if "ray.cloudpickle" in sys.modules:  # Ray has a cloudpickle of its own
        sys.modules["ray.cloudpickle"].register_pickle_by_value(module)
