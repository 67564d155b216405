"""All Python blocks of the README and of the documentation run unchanged, without a warning.

In shell blocks, lines that collect to disk run unchanged, lines that train with workers, examine or measure are
shortened; commands, options, extras and files of all others must exist: see `doc_commands`.
"""

import re
import sys
import warnings
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from inspect import ismodule
from pathlib import Path

import pytest
import torch

import doc_commands
import ray_cluster
import swath
from doc_pages import PAGES, ROOT, all_blocks, blocks, files, uses_ray, uses_torchrl
from peers.rllib_shim import TABLE
from swath import rollout_workers


def prepare(page):
    """Skip a page whose examples need packages that are not installed."""
    if "pyarrow" in page.read_text():
        pytest.importorskip("pyarrow")
    if "mpe2" in page.read_text():
        pytest.importorskip("mpe2")


def named(page):
    return f"{page.name}-ray" if uses_ray(page) else page.name


def run(page):
    with ray_cluster.lending() if uses_ray(page) else nullcontext():
        run_blocks(page)


def run_blocks(page):
    names = {"__name__": "__main__"}
    for file, code in files(page).items():
        Path(file).write_text(code)
    for language, code, line in all_blocks(page):
        if language == "python":
            exec(compile("\n" * line + code, page.name, "exec"), names)
        else:
            doc_commands.check(code)


@pytest.fixture
def threads():
    """Restore torch's threads, which the command line sets for its process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("page", [page for page in PAGES if all_blocks(page) and not uses_torchrl(page)], ids=named)
def test_the_examples_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch, threads, fork_server):
    prepare(page)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # commands put their folder there
    run(page)


@pytest.mark.skipif(find_spec("torchrl") is None, reason="torchrl is not installed")
@pytest.mark.filterwarnings("ignore::Warning:torchrl", "ignore::Warning:tensordict")
@pytest.mark.parametrize("page", [page for page in PAGES if uses_torchrl(page)], ids=named)
def test_the_examples_for_torchrl_run_without_a_warning_of_ours(page, tmp_path, monkeypatch, fork_server):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(action="ignore"):
        import_module("torchrl.collectors.distributed" if uses_ray(page) else "torchrl.collectors")
    prepare(page)
    run(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_readmes_example_has_twelve_lines():
    code, _ = blocks(ROOT / "README.md")[0]
    assert len([line for line in code.splitlines() if line]) == 12


@pytest.mark.parametrize("page", ["docs/design.md", "CONTRIBUTING.md"])
def test_files_that_are_named_are_there(page):
    """Check that files in the pages exist: full paths, below `src/swath`, or ends of paths."""
    named = re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", (ROOT / page).read_text())
    files = ["/" + file.relative_to(ROOT).as_posix() for top in ("src", "tests") for file in (ROOT / top).rglob("*.py")]
    assert [name for name in named if not any(path.endswith("/" + name) for path in files)] == []


def rows(page, heading):
    """Return the cells of the table below this heading, without the first lines."""
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
    ignored = (*headed, "__version__", "annotations", "TYPE_CHECKING")
    names = getattr(module, "__all__", None) or [name for name in dir(module) if not name.startswith("_")]
    public = [name for name in names if name not in ignored and not ismodule(getattr(module, name))]
    assert [name for name in public if not any(getattr(module, name) is entry for entry in described)] == []


def test_names_of_rllib_are_where_the_page_says():
    places = rows(ROOT / "docs" / "coming-from-rllib.md", "Module of RLlib")
    assert len(places) > 20
    for module, names in places:
        for bold, name in re.findall(r"(\*\*)?`(\w+)`", names):
            ours = getattr(rollout_workers, name)
            assert TABLE[module.strip("`")][name] is ours, name
            assert (getattr(swath, name, None) is ours) == bool(bold), name
