"""What people look at and keep: files that are whole or not there, sinks, datasets, films, curves, one live view."""

import pytest

from swath.report.atomic import replacing, sweep_drafts


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.parametrize("folder", [False, True])
def test_what_is_written_appears_whole_when_the_block_ends_and_nothing_else_is_left(folder, tmp_path):
    target = tmp_path / "deep" / "a.txt"
    with replacing(target, folder=folder) as draft:
        (draft / "c.txt" if folder else draft).write_text("new")
        assert draft.suffix == ".txt"
        assert not target.exists()
    assert (target / "c.txt" if folder else target).read_text() == "new"
    assert names(tmp_path) == ["deep", "deep/a.txt", *(["deep/a.txt/c.txt"] * folder)]


@pytest.mark.parametrize("folder", [False, True])
def test_an_exception_keeps_the_old_one_and_leaves_no_draft(folder, tmp_path):
    (tmp_path / "a").mkdir() if folder else (tmp_path / "a").write_text("old")
    with pytest.raises(OSError, match="directory"), replacing(tmp_path / "a", folder=folder) as draft:
        (draft / "nowhere" / "c.txt").write_text("half")
    assert names(tmp_path) == ["a"]


def test_drafts_of_killed_writers_are_swept_files_and_folders_alike(tmp_path):
    (tmp_path / ".a.77.tmp.txt").touch()
    (tmp_path / ".b.77.tmp" / "c").mkdir(parents=True)
    (tmp_path / "kept").touch()
    sweep_drafts(tmp_path)
    assert names(tmp_path) == ["kept"]
