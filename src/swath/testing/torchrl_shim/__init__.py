"""A pytest plugin that runs tests written for TorchRL's collectors on ours: `pytest -p swath.testing.torchrl_shim`.

    pytest -p … ──▶ our names in torchrl.collectors, … ──▶ conftests and tests are imported ──▶ run ──▶ report, put back

Names are attributes of TorchRL's own modules, so that `from torchrl.collectors import Collector` gives ours; names that
TorchRL had once, as `SyncDataCollector`, are put there too. What we do not have stays TorchRL's. At the end of the run
stand the score and the names that were ours.
TorchRL's own tests look at a few attributes more, most of them private; our collectors have them while they run.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec

import pytest
from _pytest.terminal import TerminalReporter

from swath.testing.by_value import pickle_by_value
from swath.testing.swapping import Swap, Table, require_swapped
from swath.testing.torchrl_shim.table import GONE, LENT, TABLE

_SWAP = pytest.StashKey[Swap]()
_MISSING = pytest.StashKey[str]()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Replace the names before anything of the user's is imported."""
    try:
        table = _installed(TABLE)
    except ModuleNotFoundError as error:
        early_config.stash[_MISSING] = str(error)
    else:
        early_config.stash[_SWAP] = swap = Swap(table, LENT)
        swap.apply()


def _installed(table: Table) -> Table:
    """What there are modules for in this version.

    Raises:
        ModuleNotFoundError: TorchRL is not installed.
    """
    with warnings.catch_warnings(action="ignore"):  # what it says of itself while it is imported
        import_module("torchrl.collectors.distributed")
    return {module: names for module, names in table.items() if find_spec(module) is not None}


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to run without TorchRL.

    Raises:
        pytest.UsageError: it cannot be imported, or the plugin was named too late.
    """
    missing, swapped = config.stash.get(_MISSING, None), _SWAP in config.stash
    require_swapped("swath.testing.torchrl_shim", "TorchRL", "torchrl", missing, swapped=swapped)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Put TorchRL's names back."""
    if _SWAP in config.stash:
        config.stash[_SWAP].undo()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Send what test modules have to other processes whole, if these could not import them there."""
    for item in items:
        if isinstance(item, pytest.Function) and GONE & set(vars(item.module)):
            pickle_by_value(item.module)


def pytest_report_header() -> str:
    """Say that the tests do not run on what they name."""
    return "swath: in the place of TorchRL's collectors; a table at the end says which names"


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """The score, and which names were ours."""
    swap, stats = config.stash[_SWAP], terminalreporter.stats
    terminalreporter.section("swath in the place of TorchRL")
    bad = len(stats.get("failed", [])) + len(stats.get("error", []))
    skipped = len(stats.get("skipped", []))
    terminalreporter.write_line(f"score: {len(stats.get('passed', []))} passed, {bad} failed, {skipped} left out")
    for line in swap.swapped:
        terminalreporter.write_line(line)
