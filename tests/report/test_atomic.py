import pytest

from swath.report.atomic import replacing, sweep_drafts


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


def test_a_folder_appears_with_all_that_is_in_it(tmp_path):
    with replacing(tmp_path / "deep" / "a", folder=True) as draft:
        (draft / "b").mkdir()
        (draft / "b" / "c.txt").write_text("new")
        assert not (tmp_path / "deep" / "a").exists()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a"]
    assert (tmp_path / "deep" / "a" / "b" / "c.txt").read_text() == "new"


def test_a_folder_that_was_not_finished_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="no such folder"), replacing(tmp_path / "a", folder=True) as draft:
        fill(draft / "c.txt", fails=True)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_never_takes_the_place_of_another(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "old").touch()
    with pytest.raises(OSError, match="not empty"), replacing(tmp_path / "a", folder=True) as draft:
        (draft / "new").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "old"]


def test_drafts_of_killed_writers_are_swept_files_and_folders_alike(tmp_path):
    (tmp_path / ".a.77.tmp.txt").touch()
    (tmp_path / ".b.77.tmp" / "c").mkdir(parents=True)
    (tmp_path / "kept").touch()
    sweep_drafts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
