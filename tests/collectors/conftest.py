"""What tests of collectors with worker processes share."""

import pytest

from swath.collectors.fleet_assembly import PRELOADED
from swath.workers.process.backend import PRELOAD, ProcessBackend


@pytest.fixture(scope="session")
def nursery():
    """Keeps the process alive that forks workers, so that collectors are up at once."""
    backend = ProcessBackend((*PRELOAD, *PRELOADED))
    yield backend
    backend.close()
