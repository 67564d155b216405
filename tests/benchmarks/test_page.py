"""Pages are filled with what benchmarks have kept; every benchmark is part of the suite or says why not."""

import json
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


def test_a_page_may_have_the_tables_alone(page, speed):
    text = page.filled("<!-- figures: speed tables -->\nold\n<!-- end -->", {"speed": speed})
    small, large = page.filled(PAGE, {"speed": speed}).partition("| large |")[::2]
    assert text.startswith("<!-- figures: speed tables -->\n\n| small | frames/s | share |\n")
    assert "| theirs | 1,000 |  |\n\n| large | frames/s | share |" in text
    assert not {"old", "measured", "figures/speed.png"} & set(text.split())
    assert "measured" in small
    assert "measured" in large


def test_filling_again_changes_nothing(page, speed):
    once = page.filled(PAGE, {"speed": speed})
    assert page.filled(once, {"speed": speed}) == once


@pytest.mark.parametrize("name", ["ours × theirs", "small: ours × nobody"])
def test_a_figure_that_is_not_there_once_is_an_error(page, speed, name):
    with pytest.raises(KeyError, match="small: ours × theirs; large: ours × theirs"):
        page.filled(f"<!-- figure: speed | {name} -->?<!-- end -->", {"speed": speed})


def test_what_was_measured_can_be_kept(page, speed, tmp_path):
    speed.save(tmp_path / "speed.json")
    assert page.Measured.load(tmp_path / "speed.json") == speed


def test_a_script_that_failed_says_so_on_the_page(page, speed):
    broken = page.Measured("python x.py", 3.0, "2030-01-01", [], speed.facts[:1], "it ended with -9")
    text = page.filled(PAGE, {"speed": broken})
    assert "**it ended with -9**: what is missing here was not measured." in text
    assert "-->(not measured)<!-- end --> times theirs." in text


def test_a_course_is_drawn_and_judged_by_nobody(page, figures, speed, tmp_path):
    pictures = pytest.importorskip("pictures")
    figures.course(
        "A worker is killed at 0 s", "frames/s", {"ours": [(-1.0, 5e4), (1.0, 0.0)], "TorchRL's": [(0.0, 9e3)]}
    )
    facts = figures.facts_of(tmp_path / "facts")
    part = page.Measured("python x.py", 3.0, "2030-01-01", ["2 cores"], facts)
    pictures.draw(part, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert part.verdicts == speed.verdicts
    assert page.filled(PAGE, {"speed": part}) == page.filled(PAGE, {"speed": speed})


def test_what_a_killed_worker_costs_is_read_from_what_was_told(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    told_of, stage = pytest.importorskip("survival_told"), pytest.importorskip("survival_stage")
    told = told_of.Told()
    moments = [(1.0, 100), (2.0, 100), (5.0, 50), (8.0, 100), (9.0, 100)]
    told.listen(["(raylet) noise", *(f"{stage.BATCH} {at} {frames}" for at, frames in moments)])
    seen = told_of.Seen(told, promised=100, begin=0.0, killed=3.0, end=9.5)
    assert seen.longest_wait == 3.0
    assert not seen.goes_on, "one batch is not whole"
    assert seen.row() == pytest.approx([200 / 3, 200 / (6.5 / 3), 0.5])
    assert [round(rate) for at, rate in seen.curve() if at in (-1.75, -0.75)] == [200, 200]
    told.listen([f"{stage.RAISED} EOFError"])
    assert told.raised == "EOFError"


def test_a_verdict_holds_within_its_limits(figures, tmp_path, capsys):
    assert figures.verdict("in between", 2.0, least=1, most=3)
    assert not figures.verdict("too little", 0.5, least=1)
    assert not figures.verdict("too much", 4.0, ".1f ms", most=3)
    assert figures.verdict("told", 4.0)
    assert not figures.claim("holds", False)
    assert figures.ended([True, False]) == 1
    said = capsys.readouterr().out
    assert "4.0 ms, target at most 3: MISSED" in said
    kept = [json.loads(line)["passed"] for line in (tmp_path / "facts").read_text().splitlines()]
    assert kept == [True, False, False, True, False]


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
