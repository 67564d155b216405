"""Every Python block of the README and of the documentation runs as it stands, without a warning.

Of the shell's blocks, lines that collect to disk run as they stand, lines that train with workers, examine or measure
are cut short; all others that call swath name a command and options that there are.
"""

import re
import shlex
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import ray_cluster
import swath
from swath import rollout_workers
from swath.cli.app import app
from swath.cli.app import run as command_line
from swath.testing.rllib_shim.table import TABLE

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHORT = ("--frames=256", "--batch=128", "--envs=2", "--eval-episodes=2", "--no-video")

LOOKS = {"doctor": ("--steps=50",), "bench": ("--rounds=1", "--seconds=0", "--batch=32", "--envs=2")}


def all_blocks(page: Path) -> list[tuple[str, str, int]]:
    """Language, code and the number of the line above it."""
    text = page.read_text()
    return [(found[1], found[2], text.count("\n", 0, found.start()) + 1) for found in BLOCK.finditer(text)]


def blocks(page: Path) -> list[tuple[str, int]]:
    """Python's code and the number of the line above it."""
    return [(code, line) for language, code, line in all_blocks(page) if language == "python"]


def commands(code: str) -> list[list[str]]:
    """What the lines of a shell's block call swath with."""
    lines = [shlex.split(line, comments=True) for line in code.splitlines()]
    return [words[1:] for words in lines if words and Path(words[0]).name == "swath"]


def prepare(page: Path) -> None:
    """Skip a page whose examples need what is not installed; let those on Ray find the cluster of this run."""
    text = page.read_text()
    if "pyarrow" in text:
        pytest.importorskip("pyarrow")
    if uses_ray(page):
        ray_cluster.up()


def uses_ray(page: Path) -> bool:
    return any("import Ray" in code for code, _ in blocks(page))


def uses_torchrl(page: Path) -> bool:
    return any("torchrl" in code for code, _ in blocks(page))


def named(page: Path) -> str:
    return f"{page.name}-ray" if uses_ray(page) else page.name


def run(page: Path) -> None:
    names = {"__name__": "__main__"}
    for language, code, line in all_blocks(page):
        if language == "python":
            exec(compile("\n" * line + code, page.name, "exec"), names)
        else:
            for command in commands(code):
                call(command)


def call(command: list[str]) -> None:
    """Run a command of swath, or only look whether there is such a one."""
    app.parse_args(command, exit_on_error=False, print_error=False)
    if "ray" in command:
        return
    if command[0] == "collect":
        assert command_line(command) == 0
    elif command[0] in LOOKS:
        assert command_line([*command, *LOOKS[command[0]]]) == 0
    elif "--workers" in command:
        assert command_line([*command, *SHORT]) == 0


@pytest.fixture
def threads():
    """The command line sets torch's threads for its process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page) and not uses_torchrl(page)], ids=named)
def test_the_examples_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch, threads):
    prepare(page)
    monkeypatch.chdir(tmp_path)
    run(page)


@pytest.mark.skipif(find_spec("torchrl") is None, reason="torchrl is not installed")
@pytest.mark.filterwarnings("ignore::Warning:torchrl", "ignore::Warning:tensordict")
@pytest.mark.parametrize("page", [page for page in PAGES if uses_torchrl(page)], ids=named)
def test_the_examples_for_torchrl_run_without_a_warning_of_ours(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(action="ignore"):
        import_module("torchrl.collectors")
    prepare(page)
    run(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def rows(page: Path, heading: str) -> list[list[str]]:
    """The cells of the table that has this heading, below its own first lines."""
    _, _, below = page.read_text().partition(f"| {heading} |")
    lines = below.split("\n\n", maxsplit=1)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


@pytest.mark.parametrize(
    "package", ["swath", "swath.rollout_workers", "swath.testing", "swath.testing.envs", "swath.learn"]
)
def test_the_reference_has_every_public_name(package):
    text = "\n".join(page.read_text() for page in sorted((ROOT / "docs").glob("reference*.md")))
    paths = [path.rpartition(".") for path in re.findall(r"^::: ([\w.]+)", text, re.MULTILINE)]
    described = [getattr(import_module(home), name) for home, _, name in paths]
    headed = re.findall(r"^### `(\w+)`", text, re.MULTILINE)
    module = import_module(package)
    public = [name for name in getattr(module, "__all__", None) or dir(module) if name not in ("__version__", *headed)]
    assert [name for name in public if not any(getattr(module, name) is one for one in described)] == []


def test_names_of_rllib_are_where_the_page_says():
    places = rows(ROOT / "docs" / "coming-from-rllib.md", "Module of RLlib")
    assert len(places) > 20
    for module, names in places:
        for bold, name in re.findall(r"(\*\*)?`(\w+)`", names):
            ours = getattr(rollout_workers, name)
            assert TABLE[module.strip("`")][name] is ours, name
            assert (getattr(swath, name, None) is ours) == bool(bold), name


def test_the_readmes_example_has_twelve_lines():
    code, _ = blocks(ROOT / "README.md")[0]
    assert len([line for line in code.splitlines() if line]) == 12
