"""Pages are filled with what benchmarks have kept; every benchmark is part of the suite, and the suite is small."""

import json
from pathlib import Path

import pytest

HERE = Path(__file__).parent.parent.parent / "benchmarks"
SHARED = {"suite.py", "rounds.py"}
PAGE = """# Title
<!-- figures: speed -->
old
<!-- end -->
<!-- figures: speed tables -->
<!-- end -->
<!-- figures: other -->
kept
<!-- end -->
<!-- figures: summary -->
<!-- end -->
<!-- figures: missed -->
<!-- end -->
<!-- figures: machine -->
<!-- end -->
"""


@pytest.fixture
def suite(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    return pytest.importorskip("suite")


@pytest.fixture
def text(suite, monkeypatch, tmp_path):
    """A filled page."""
    monkeypatch.setenv("SWATH_FIGURES", str(tmp_path / "facts"))
    rounds = pytest.importorskip("rounds")
    for size, ratio in (("small", 12.345), ("large", 3.0)):
        rounds.table(size, {"frames/s": ",.0f", "share": ".0%"}, {"ours": [12345.6, 0.5], "theirs": [1000.0, None]})
        rounds.verdict("ours × theirs", ratio, ".1f", minimum=10, note="12–13")
    facts = [json.loads(line) for line in (tmp_path / "facts").read_text().splitlines()]
    part = suite.Measured("python x.py", 3.0, "2030-01-01", ["2 cores"], facts)
    monkeypatch.setattr(suite, "SUMMARY", (suite.Row("Envs", "a loop", "speed", "larg", "ours × theirs"),))
    return suite.filled(PAGE, {"speed": part})


def test_marks_are_filled_and_the_rest_is_left_alone(text):
    assert "old" not in text
    assert "| small | frames/s | share |" in text
    assert "| ours | 12,346 | 50% |" in text
    assert "| theirs | 1,000 |  |" in text
    assert text.count("![small](figures/speed.png)") == 1
    assert "<!-- figures: other -->\nkept\n<!-- end -->" in text
    assert "- 2 cores" in text


def test_the_summary_has_one_figure_of_each_row_and_its_command(text):
    assert text.count("| Envs |") == 1
    assert "| Envs | a loop | 3.0 × | `.venv/bin/python x.py` |" in text


def test_missed_targets_are_counted_and_marked_in_their_table(text):
    assert "1 of 2 targets are reached; tables say which are **missed**." in text
    assert "| ours × theirs | 3.0 | ≥ 10: **missed** | 12–13 |" in text


def test_every_benchmark_is_part_of_the_suite(suite):
    scripts = {file.name for file in HERE.glob("*.py") if 'if __name__ == "__main__"' in file.read_text()}
    scripts = {name for name in scripts if not name.startswith("peer_")}
    assert scripts - SHARED == {command.split()[0] for command in suite.PARTS.values()}


def test_every_part_has_its_place_on_the_page(suite):
    page, *others = (file.read_text(encoding="utf-8") for file in suite.PAGES)
    assert {found[1] for found in suite.BLOCK.findall(page)} == {*suite.PARTS, *suite.MADE_OF_ALL}
    for other in others:
        assert [found[1] for found in suite.BLOCK.findall(other)] == ["summary"]


def test_rows_of_the_summary_name_parts(suite):
    assert {row.part for row in suite.SUMMARY} <= {*suite.PARTS}
