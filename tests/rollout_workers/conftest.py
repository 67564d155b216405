"""What is warned of once is warned of in each of these tests."""

import pytest


@pytest.fixture(autouse=True)
def _nothing_was_warned_of_yet(monkeypatch):
    monkeypatch.setattr("swath.errors._warned_of", set())
