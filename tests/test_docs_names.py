"""The documentation has every public name, and says rightly where RLlib has the same ones."""

import re
from importlib import import_module
from inspect import ismodule

import pytest

import swath
from doc_pages import ROOT
from swath import rollout_workers
from swath.testing.rllib_shim import TABLE


def rows(page, heading):
    """The cells of the table that has this heading, below its own first lines."""
    _, _, below = page.read_text().partition(f"| {heading} |")
    lines = below.split("\n\n", maxsplit=1)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


@pytest.mark.parametrize("package", ["swath", "swath.rollout_workers", "swath.testing", "swath.learn"])
def test_the_reference_has_every_public_name(package):
    text = "\n".join(page.read_text() for page in sorted((ROOT / "docs").glob("reference*.md")))
    paths = [path.rpartition(".") for path in re.findall(r"^::: ([\w.]+)", text, re.MULTILINE)]
    described = [getattr(import_module(home), name) for home, _, name in paths]
    headed = re.findall(r"^### `(\w+)`", text, re.MULTILINE)
    module = import_module(package)
    known = (*headed, "__version__", "annotations", "TYPE_CHECKING")
    names = getattr(module, "__all__", None) or [name for name in dir(module) if not name.startswith("_")]
    public = [name for name in names if name not in known and not ismodule(getattr(module, name))]
    assert [name for name in public if not any(getattr(module, name) is one for one in described)] == []


def test_names_of_rllib_are_where_the_page_says():
    places = rows(ROOT / "docs" / "coming-from-rllib.md", "Module of RLlib")
    assert len(places) > 20
    for module, names in places:
        for bold, name in re.findall(r"(\*\*)?`(\w+)`", names):
            ours = getattr(rollout_workers, name)
            assert TABLE[module.strip("`")][name] is ours, name
            assert (getattr(swath, name, None) is ours) == bool(bold), name
