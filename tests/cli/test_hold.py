import os
from pathlib import Path

import pytest

from swath.cli import hold
from swath.cli.failure import UsageError
from swath.cli.hold import claimed, held


def test_a_folder_is_held_by_one_process_at_a_time(tmp_path):
    said = f"another `swath dance` is at work in {tmp_path}; wait for it, or give another folder"
    with held(tmp_path, "swath dance") as surely:
        assert surely
        with pytest.raises(UsageError) as refused, held(tmp_path, "swath dance"):
            pass
    assert str(refused.value) == said
    assert list(tmp_path.iterdir()) == []


def test_where_there_are_no_locks_nobody_is_kept_out_and_that_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(hold.fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError("no locks available")))
    with held(tmp_path, "swath dance") as surely:
        assert not surely
    monkeypatch.setattr(hold, "fcntl", None)
    with held(tmp_path, "swath dance") as surely:
        assert not surely


def test_a_folder_that_was_claimed_in_vain_is_not_left_behind(tmp_path):
    with pytest.raises(ZeroDivisionError), claimed(tmp_path / "deep" / "new", "swath dance"):
        1 / 0  # noqa: B018
    assert not (tmp_path / "deep" / "new").exists()


def test_a_folder_that_was_there_or_has_something_in_it_stays(tmp_path):
    with claimed(tmp_path, "swath dance"):
        pass
    with claimed(tmp_path / "new", "swath dance"):
        (tmp_path / "new" / "part").touch()
    assert (tmp_path / "new" / "part").exists()


def test_what_cannot_be_a_folder_is_said(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(UsageError, match=f"--out {path} cannot be a folder: .*; choose another one"):
            claim(path)


def test_a_folder_that_may_not_be_written_into_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(hold.os, "access", lambda path, mode: path != tmp_path or not mode & os.W_OK)
    with pytest.raises(UsageError, match=f"--out: nothing can be written into {tmp_path}; choose another folder"):
        claim(tmp_path)
    claim(tmp_path / "below")


def claim(path: Path) -> None:
    with claimed(path, "swath dance"):
        pass
