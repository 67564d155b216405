"""Pages are filled with what benchmarks have kept; every benchmark is part of the suite or says why not."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent.parent.parent / "benchmarks"
PAGE = """# Title
<!-- figures: speed -->
old
<!-- end -->
Ours makes <!-- figure: speed | small: ours × theirs -->?<!-- end --> times theirs.
<!-- figures: other -->
kept
<!-- end -->
<!-- figures: missed -->
<!-- end -->
<!-- figures: machine -->
<!-- end -->
"""


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    return pytest.importorskip("page")


@pytest.fixture
def figures(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("SWATH_FIGURES", str(tmp_path / "facts"))
    return pytest.importorskip("figures")


@pytest.fixture
def speed(page, figures, tmp_path):
    for size, ratio in (("small", 12.345), ("large", 3.0)):
        figures.table(size, {"frames/s": ",.0f", "share": ".0%"}, {"ours": [12345.6, 0.5], "theirs": [1000.0, None]})
        figures.verdict("ours × theirs", ratio, ".1f", least=10, note="half of the rounds 12 to 13")
    facts = figures.facts_of(tmp_path / "facts")
    return page.Measured("python x.py", 3.0, "2030-01-01", ["2 cores"], facts)


def test_marks_are_filled_and_the_rest_is_left_alone(page, speed):
    text = page.filled(PAGE, {"speed": speed})
    assert "old" not in text
    assert "| small | frames/s | share |" in text
    assert "| ours | 12,346 | 50% |" in text
    assert "| theirs | 1,000 |  |" in text
    assert "![small](figures/speed.png)" in text
    assert "Ours makes <!-- figure: speed | small: ours × theirs -->12.3<!-- end --> times theirs." in text
    assert "<!-- figures: other -->\nkept\n<!-- end -->" in text
    assert "- 2 cores" in text


def test_what_is_missed_is_said_with_its_table(page, speed):
    text = page.filled(PAGE, {"speed": speed})
    assert "1 of 2 targets are reached; these are missed:" in text
    assert "- large: ours × theirs: 3.0, at least 10 is wanted (half of the rounds 12 to 13)" in text
    assert "| ours × theirs | 3.0 | at least 10: **missed** | half of the rounds 12 to 13 |" in text


def test_every_benchmark_is_part_of_the_suite_or_says_why_not(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    pytest.importorskip("matplotlib")
    suite = pytest.importorskip("suite")
    scripts = {
        file.name
        for file in HERE.glob("*.py")
        if 'if __name__ == "__main__"' in file.read_text() and not file.name.startswith("peer_")
    }
    run = {part.script for part in suite.PARTS.values()}
    assert scripts - {"suite.py"} == run | set(suite.NOT_RUN)
    assert not run & set(suite.NOT_RUN)


def test_every_part_has_its_place_on_the_page(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    pytest.importorskip("matplotlib")
    suite, page = pytest.importorskip("suite"), pytest.importorskip("page")
    text = suite.PAGES[0].read_text(encoding="utf-8")
    assert {found[1] for found in page.BLOCK.findall(text)} == {*suite.PARTS, *page.MADE_OF_ALL}
