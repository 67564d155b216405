import pytest

from swath.report.atomic import replacing


def fill(draft, fails):
    draft.write_text("half")
    if fails:
        raise OSError("no such folder")


def test_the_file_appears_when_the_block_ends_and_nothing_else_is_left(tmp_path):
    with replacing(tmp_path / "deep" / "a.txt") as draft:
        draft.write_text("new")
        assert draft.suffix == ".txt"
        assert not (tmp_path / "deep" / "a.txt").exists()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.txt"]
    assert (tmp_path / "deep" / "a.txt").read_text() == "new"


def test_an_exception_keeps_the_old_file_and_leaves_no_draft(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(OSError, match="no such folder"), replacing(target) as draft:
        fill(draft, fails=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert target.read_text() == "old"
