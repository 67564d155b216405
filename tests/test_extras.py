"""Optional packages."""

import pytest

from swath.extras import need


def test_a_broken_package_is_not_taken_for_a_missing_one(tmp_path, monkeypatch):
    (tmp_path / "broken_extra.py").write_text("import surely_not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="surely_not_installed"):
        need("broken_extra", extra="x", why="to test")
