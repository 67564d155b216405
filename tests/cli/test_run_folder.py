import fcntl
from pathlib import Path

import pytest

from swath.cli.failure import UsageError
from swath.cli.naming import held, new_folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_an_id_with_a_namespace_or_module_makes_one_folder():
    assert new_folder(None, "my.envs:ALE/Pong-v5", 0).path == Path("runs/my.envs-ALE-Pong-v5-seed0")


def test_a_folder_that_cannot_be_made_is_said_with_the_reason():
    Path("file").touch()
    for path in ("file", "file/deeper"):
        with pytest.raises(UsageError, match=f"^--out {path} cannot be a folder: .*; choose another one$"):
            new_folder(Path(path), "X", 0)
    Path("runs").touch()
    said = "^runs/X-seed0 cannot be made: Not a directory; name a folder with --out$"
    with pytest.raises(UsageError, match=said):
        new_folder(None, "X", 0)


def test_where_a_disk_has_no_locks_runs_go_on_without(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError("no locks available")))
    with held(tmp_path, "swath dance"):
        pass


def test_a_folder_that_was_claimed_in_vain_is_not_left_behind(tmp_path):
    with pytest.raises(ZeroDivisionError), held(tmp_path / "deep" / "new", "swath dance"):
        1 / 0  # noqa: B018
    assert not (tmp_path / "deep" / "new").exists()
    with held(tmp_path / "new", "swath dance"):
        (tmp_path / "new" / "part").touch()
    assert (tmp_path / "new" / "part").exists()
