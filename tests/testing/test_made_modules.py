"""Modules that are made when they are imported, in the place of those of a library that is not there."""

import importlib
import sys

import pytest

from swath.testing.made_modules import MadeModules
from swath.testing.swapping import Swap


class _Ours:
    """In the place of something."""


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A library of one module."""
    folder = tmp_path / "half_a_library"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "there.py").write_text("own = 1\n")
    (tmp_path / "source.py").write_text("def function():\n    return __name__\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("half_a_library")]:
        del sys.modules[name]


@pytest.fixture
def made(library):
    """Makes its modules, not yet installed."""
    filling = {"half_a_library.gone": {"kept": 2}, "half_a_library.there": {"own": 3}}
    made = MadeModules(["half_a_library"], filling, {"half_a_library.file": library / "source.py"}.get)
    yield made
    made.remove()


def test_behind_others_only_what_is_not_there_is_made(made):
    made.install(first=False)
    assert importlib.import_module("half_a_library.there").own == 1
    assert importlib.import_module("half_a_library.gone").kept == 2


def test_before_others_all_is_made_also_what_was_imported(made):
    assert importlib.import_module("half_a_library.there").own == 1
    made.install(first=True)
    assert importlib.import_module("half_a_library.there").own == 3


def test_modules_are_made_of_files_where_there_are_some(made):
    made.install(first=False)
    assert importlib.import_module("half_a_library.file").function() == "half_a_library.file"


def test_other_names_stand_for_what_is_missing_until_they_are_used(made):
    made.install(first=False)
    missing = importlib.import_module("half_a_library.gone").Missing
    derived = type("Derived", (missing, dict), {})
    for unusable in (missing, derived):
        with pytest.raises(NotImplementedError, match=r"half_a_library\.gone\.Missing is not installed"):
            unusable(1)
    assert not hasattr(importlib.import_module("half_a_library.gone"), "__all__")


def test_nothing_is_left_of_them(made):
    made.install(first=False)
    importlib.import_module("half_a_library.there")
    importlib.import_module("half_a_library.gone.deeper")
    made.remove()
    assert [name for name in sys.modules if name.startswith("half_a_library")] == [
        "half_a_library",
        "half_a_library.there",
    ]
    assert not hasattr(sys.modules["half_a_library"], "gone")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("half_a_library.gone")


def test_names_that_a_library_lacks_are_put_where_that_is_asked_for(made):
    made.install(first=False)
    table = {"half_a_library.there": {"own": _Ours, "lacking": _Ours}}
    for absent_too in (False, True):
        swap = Swap(table, absent_too=absent_too)
        swap.apply()
        assert [place.name for place in swap.swapped()] == ["own", "lacking"][: 1 + absent_too]
        swap.undo()
    assert vars(importlib.import_module("half_a_library.there"))["own"] == 1
