"""Tests with TorchRL, which is an extra: without it they are not collected."""

import warnings
from importlib import metadata
from pathlib import Path

import pytest

from swath.workers.process.backend import PRELOAD, ProcessBackend

HERE = Path(__file__).parent
MISSED_WITHOUT_NEED = "The env passed to Collector is missing transforms"
"""A warning of TorchRL 0.13 for every policy, also for policies without these keys."""

try:
    metadata.version("torchrl")
except metadata.PackageNotFoundError:
    collect_ignore_glob = ["test_*.py"]
else:
    with warnings.catch_warnings(action="ignore"):
        import torchrl.collectors
        import torchrl.envs  # noqa: F401


@pytest.fixture(scope="session")
def fork_server(fork_server):
    """Have the fork server import TorchRL, too."""
    ProcessBackend((*PRELOAD, "torchrl.envs", "torchrl.modules")).close()
    return fork_server


def pytest_collection_modifyitems(items):
    """Turn warnings into errors, except warnings of TorchRL itself."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.filterwarnings("ignore::Warning:torchrl"))
            item.add_marker(pytest.mark.filterwarnings("ignore::Warning:tensordict"))
            item.add_marker(pytest.mark.filterwarnings("ignore::Warning:gymnasium"))
            item.add_marker(pytest.mark.filterwarnings(f"ignore:{MISSED_WITHOUT_NEED}:FutureWarning"))
