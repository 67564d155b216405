"""A fixture for tests that begin many worker processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from swath.workers.process.backend import ProcessBackend


@pytest.fixture(scope="session")
def warm_processes() -> Iterator[None]:
    """Keeps a nursery for as long as the tests run, so that only the first worker waits for imports.

    Import it in a `conftest.py`, and ask for it where process backends are made.
    """
    backend = ProcessBackend()
    yield
    backend.close()
