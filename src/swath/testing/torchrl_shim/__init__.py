"""A pytest plugin that runs tests written for TorchRL's collectors on ours: `pytest -p swath.testing.torchrl_shim`.

    pytest -p … ──▶ our names in torchrl.collectors, … ──▶ conftests and tests are imported ──▶ run ──▶ score, put back

Names are attributes of TorchRL's own modules, so that `from torchrl.collectors import Collector` gives ours; names that
TorchRL had once, as `SyncDataCollector`, are put there too. What we do not have stays TorchRL's.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from swath import collectors, evaluators, weight_update
from swath.testing.shim import Shim, Table, ours, pickle_by_value, tables

_SHIM = Shim(__name__, "TorchRL's collectors", "torchrl")
pytest_configure = _SHIM.pytest_configure
pytest_unconfigure = _SHIM.pytest_unconfigure
pytest_terminal_summary = _SHIM.pytest_terminal_summary


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Replace the names before anything of the user's is imported."""
    if _SHIM.is_installed("torchrl"):
        _SHIM.apply(TABLE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Send what test modules have to other processes whole, where these names are not."""
    for item in items:
        if isinstance(item, pytest.Function):
            pickle_by_value(item.module)


class AsyncCollector(collectors.MultiAsyncCollector):
    """One worker in a process of its own; `Collector(…, backend="process")` is the same."""

    def __init__(self, create_env_fn: Any, *args: Any, **keywords: Any) -> None:
        super().__init__([create_env_fn], *args, **keywords)


_STAND_INS = SimpleNamespace(
    AsyncCollector=AsyncCollector,
    SyncDataCollector=collectors.Collector,
    aSyncDataCollector=AsyncCollector,
    MultiSyncDataCollector=collectors.MultiSyncCollector,
    MultiaSyncDataCollector=collectors.MultiAsyncCollector,
)
_HOMES = _STAND_INS, collectors, evaluators, weight_update
TABLE: Table = {module: ours(names, *_HOMES) for module, names in tables(__file__)["names"].items()}
"""Names that TorchRL had once are here too, and modules that not every version has."""
