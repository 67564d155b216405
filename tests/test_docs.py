"""Every Python block of the README and of the documentation runs as it stands, without a warning."""

import re
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, int]]:
    """Code and the number of the line above it."""
    text = page.read_text()
    return [(found[1], text.count("\n", 0, found.start()) + 1) for found in BLOCK.finditer(text)]


def uses_torchrl(page: Path) -> bool:
    return any("torchrl" in code for code, _ in blocks(page))


def run(page: Path) -> None:
    names = {"__name__": "__main__"}
    for code, line in blocks(page):
        exec(compile("\n" * line + code, page.name, "exec"), names)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page) and not uses_torchrl(page)], ids=lambda page: page.name
)
def test_the_examples_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(page)


@pytest.mark.skipif(find_spec("torchrl") is None, reason="torchrl is not installed")
@pytest.mark.filterwarnings("ignore::Warning:torchrl", "ignore::Warning:tensordict")
@pytest.mark.parametrize("page", [page for page in PAGES if uses_torchrl(page)], ids=lambda page: page.name)
def test_the_examples_for_torchrl_run_without_a_warning_of_ours(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(action="ignore"):
        import_module("torchrl.collectors")
    run(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_readmes_example_has_twelve_lines():
    code, _ = blocks(ROOT / "README.md")[0]
    assert len([line for line in code.splitlines() if line]) == 12
