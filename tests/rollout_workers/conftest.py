"""Worker processes begin quickly in these tests, and what is warned of once is warned of in each."""

import pytest

pytest.register_assert_rewrite(
    "checklist_arguments",
    "checklist_learning",
    "checklist_methods",
    "checklist_policies",
    "defects_of_sets",
    "defects_of_workers",
)


@pytest.fixture(autouse=True)
def _nothing_was_warned_of_yet(monkeypatch):
    monkeypatch.setattr("swath.errors._warned_of", set())
