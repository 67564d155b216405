"""A pytest plugin that runs tests written for TorchRL's collectors on ours: `pytest -p peers.torchrl_shim`.

    pytest -p … ──▶ our names in torchrl.collectors, … ──▶ conftests and tests are imported ──▶ run ──▶ score, put back
                                                    └──▶ processes that tests start, Ray's workers too, do the same

Names are attributes of TorchRL's own modules, so that `from torchrl.collectors import Collector` gives ours; names that
TorchRL had once, as `SyncDataCollector`, are put there too. What we do not have stays TorchRL's.
"""

from __future__ import annotations

from typing import Any

import pytest

from peers.shim import Shim
from swath import collectors, evaluators, weight_update


class AsyncCollector(collectors.MultiAsyncCollector):
    """One worker in a process of its own; `Collector(…, backend="process")` is the same."""

    def __init__(self, create_env_fn: Any, *args: Any, **keywords: Any) -> None:
        super().__init__([create_env_fn], *args, **keywords)


aSyncDataCollector = AsyncCollector
SyncDataCollector = collectors.Collector
MultiSyncDataCollector = collectors.MultiSyncCollector
MultiaSyncDataCollector = collectors.MultiAsyncCollector

_SHIM = Shim(__name__, "TorchRL's collectors", "torchrl", collectors, evaluators, weight_update)
TABLE = _SHIM.table
"""Names that TorchRL had once are here too, and modules that not every version has."""

apply = _SHIM.apply
pytest_configure = _SHIM.pytest_configure
pytest_collection_modifyitems = _SHIM.pytest_collection_modifyitems
pytest_terminal_summary = _SHIM.pytest_terminal_summary


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Replace the names before anything of the user's is imported."""
    if _SHIM.is_installed():
        early_config.add_cleanup(_SHIM.patch.undo)
        _SHIM.apply()
        _SHIM.reach_children()
