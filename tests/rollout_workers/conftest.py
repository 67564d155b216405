"""Each test gets the warnings that are given once per process."""

import pytest


@pytest.fixture(autouse=True)
def _nothing_was_warned_of_yet(monkeypatch):
    monkeypatch.setattr("swath.errors._warned_of", set())
