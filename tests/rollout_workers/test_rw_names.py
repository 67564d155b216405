"""The public names of the package, which are loaded at first use."""

import ast
import inspect
from pathlib import Path

import pytest

import swath
from swath import rollout_workers

SOURCE = ast.parse(Path(rollout_workers.__file__).read_text())


@pytest.mark.parametrize("name", sorted(rollout_workers._HOME))
def test_a_name_resolves_and_is_described_in_one_line_if_it_has_a_docstring(name):
    value = getattr(rollout_workers, name)
    if inspect.isclass(value) or inspect.isroutine(value):
        assert (inspect.getdoc(value) or "").split("\n")[0].endswith((".", ":"))


def test_type_checkers_and_the_interpreter_see_the_same_names():
    guarded = next(node for node in SOURCE.body if isinstance(node, ast.If))
    imports = [node for node in guarded.body if isinstance(node, ast.ImportFrom)]
    assert {alias.asname: node.module for node in imports for alias in node.names} == rollout_workers._HOME
    assert set(dir(rollout_workers)) == set(rollout_workers.__all__) == set(rollout_workers._HOME)


OWN = {"RandomPolicy"}  # for collectors it is another class


def test_what_swath_hands_on_too_is_the_same_object():
    shared = set(swath.__all__) & set(rollout_workers._HOME) - OWN
    assert "EnvContext" in shared
    assert all(getattr(swath, name) is getattr(rollout_workers, name) for name in shared)


def test_an_unknown_name_is_an_attribute_error_that_lists_the_known_ones():
    with pytest.raises(AttributeError, match=r"no attribute 'EnvContex'; public names: .*EnvContext"):
        rollout_workers.EnvContex  # noqa: B018
