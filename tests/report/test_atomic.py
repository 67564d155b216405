import signal
import subprocess
import sys
from pathlib import Path

import pytest

from swath.report.atomic import replace_atomically
from toys import DEADLINE_S

KILLED = """
import os, sys
from swath.report.atomic import replace_atomically
with replace_atomically(sys.argv[1], folder=sys.argv[2] == "folder"):
    os.kill(os.getpid(), 9)
"""


def die_while_writing(path, kind):
    ended = subprocess.run([sys.executable, "-c", KILLED, path, kind], timeout=DEADLINE_S, check=False)
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.parametrize("folder", [False, True])
def test_a_file_or_folder_appears_when_the_block_ends_and_not_if_it_raises(folder, tmp_path):
    target = tmp_path / "deep" / "a.txt"
    with replace_atomically(target, folder=folder) as draft:
        (draft / "c.txt" if folder else draft).write_text("new")
        assert draft.suffix == ".txt"
        assert not target.exists()
    with pytest.raises(OSError, match="directory"), replace_atomically(target, folder=folder) as draft:
        (draft / "nowhere" / "c.txt").write_text("half")
    assert (target / "c.txt" if folder else target).read_text() == "new"
    assert len([*tmp_path.rglob("*")]) == 2 + folder, "no draft is left"


@pytest.mark.parametrize(("name", "kind"), [("c.safetensors", "file"), ("film-7.mp4", "file"), ("part-0", "folder")])
def test_a_draft_of_a_killed_writer_goes_when_a_file_of_its_kind_is_written(name, kind, tmp_path):
    die_while_writing(tmp_path / name, kind)
    assert len([*tmp_path.iterdir()]) == 1
    with replace_atomically(tmp_path / "other.txt"):
        assert len([*tmp_path.iterdir()]) == 2, "another kind of file"
    later = Path(name).with_stem("later")
    with replace_atomically(tmp_path / later, folder=kind == "folder"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([str(later), "other.txt"])


def test_drafts_of_running_writers_and_other_hidden_files_stay(tmp_path):
    (tmp_path / ".notes.tmp.mp4").touch()
    with replace_atomically(tmp_path / "film-1.mp4") as first:
        with replace_atomically(tmp_path / "film-2.mp4"):
            pass
        first.write_text("complete")
    assert (tmp_path / "film-1.mp4").read_text() == "complete"
    assert (tmp_path / ".notes.tmp.mp4").exists()
