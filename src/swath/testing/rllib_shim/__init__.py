"""A pytest plugin that runs tests written for RLlib's rollout workers on ours: `pytest -p swath.testing.rllib_shim`.

    pytest -p … ──▶ our names in ray.rllib.… ──▶ conftests and tests are imported ──▶ run ──▶ score, names put back

Ray must be installed, RLlib need not be: then its modules are made, with our names and a few helpers of its tests. Old
places that an installed RLlib has no more are made, too. Names that neither we nor RLlib have can be imported, but not
used. A checkout of RLlib need not be importable: `ray.rllib.….tests` are found where the tests that run are.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter

from swath.testing.by_value import pickle_by_value
from swath.testing.made_modules import MadeModules
from swath.testing.rllib_shim.helpers import FILLING
from swath.testing.rllib_shim.left_out import reason_to_leave_out
from swath.testing.rllib_shim.table import ENV_FOLDERS, LENT, TABLE
from swath.testing.swapping import Swap, require_swapped

ROOTS = ("ray.rllib", "ray.tune")

_MADE = pytest.StashKey[MadeModules]()
_SWAP = pytest.StashKey[Swap]()
_MISSING = pytest.StashKey[str]()


class _Sources:
    """Finds files of RLlib's tests in checkouts, and of its examples' envs in the installed Ray, by any place.

    Args:
        arguments: of pytest, some of which are paths.
        installed: the folder of the installed Ray.
    """

    def __init__(self, arguments: Sequence[str], installed: Path) -> None:
        paths = [Path(argument.partition("::")[0]).absolute() for argument in arguments]
        near = [folder for path in paths for folder in (path / "rllib", path, *path.parents)]
        self._checkouts = [folder for folder in near if folder.name == "rllib"]
        self._installed = installed

    def __call__(self, module: str) -> Path | None:
        if module in TABLE:
            return None
        if ".tests." in module:
            inside = module.removeprefix("ray.rllib.").replace(".", "/")
            return next((file for root in self._checkouts if (file := root / f"{inside}.py").is_file()), None)
        for folder in ENV_FOLDERS:
            file = self._installed / ENV_FOLDERS[0].replace(".", "/") / f"{module.removeprefix(folder + '.')}.py"
            if module.startswith(f"{folder}.") and file.is_file():
                return file
        return None


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Replace the names before anything of the user's is imported."""
    try:
        import ray  # noqa: PLC0415  of which there may be none
        import ray.cloudpickle  # noqa: PLC0415
    except ModuleNotFoundError as error:
        early_config.stash[_MISSING] = str(error)
        return
    sources = _Sources(args, Path(ray.__file__).parents[1])
    early_config.stash[_MADE] = made = MadeModules(ROOTS, FILLING, sources)
    made.install(first=not _installed())
    early_config.stash[_SWAP] = swap = Swap(TABLE, LENT, absent_too=True)
    swap.apply()


def _installed() -> bool:
    with suppress(ImportError):
        import_module("ray.rllib")
        return True
    return False


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to run without Ray.

    Raises:
        pytest.UsageError: it cannot be imported, or the plugin was named too late.
    """
    missing, swapped = config.stash.get(_MISSING, None), _SWAP in config.stash
    require_swapped("swath.testing.rllib_shim", "Ray", "ray", missing, swapped=swapped)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Put RLlib's names back, and forget the modules that were made."""
    if _SWAP in config.stash:
        config.stash[_SWAP].undo()
        config.stash[_MADE].remove()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what is listed; send what test modules have to other processes whole, where these names are not."""
    for item in items:
        if (reason := reason_to_leave_out(item.path, item.name)) is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
        if isinstance(item, pytest.Function):
            pickle_by_value(item.module)


def pytest_report_header() -> str:
    """Say that the tests do not run on what they name."""
    return "swath: in the place of RLlib's rollout workers; the score is at the end"


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """The score, what was left out and why, and which names were ours and how often each was used."""
    stats = terminalreporter.stats
    left_out = stats.get("skipped", [])
    bad = len(stats.get("failed", [])) + len(stats.get("error", []))
    terminalreporter.section("swath in the place of RLlib")
    terminalreporter.write_line(f"score: {len(stats.get('passed', []))} passed, {bad} failed, {len(left_out)} left out")
    for report in left_out:
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
        terminalreporter.write_line(f"left out: {report.nodeid}: {str(reason).removeprefix('Skipped: ')}")
    uses = {name.ours: name.uses for name in config.stash[_SWAP].swapped() if name.uses}
    terminalreporter.write_line("used: " + ", ".join(f"{ours} {count} times" for ours, count in sorted(uses.items())))
