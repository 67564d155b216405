import fcntl
from pathlib import Path

import pytest

from swath.cli.failure import UsageError
from swath.cli.folder import RunFolder, find_checkpoint, held, new_folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_every_run_gets_a_folder_of_its_own():
    paths = [new_folder(None, "CartPole-v1", 3).path for _ in range(3)]
    assert paths == [
        Path("runs") / name for name in ("CartPole-v1-seed3", "CartPole-v1-seed3-2", "CartPole-v1-seed3-3")
    ]
    assert all(path.is_dir() for path in paths)


def test_an_id_with_a_namespace_or_module_makes_one_folder():
    assert new_folder(None, "my.envs:ALE/Pong-v5", 0).path == Path("runs/my.envs-ALE-Pong-v5-seed0")


def test_a_folder_asked_for_may_be_new_or_empty():
    Path("empty").mkdir()
    assert new_folder(Path("empty"), "X", 0).path == Path("empty")
    assert new_folder(Path("deep/new"), "X", 0).path.is_dir()


def test_a_folder_with_something_in_it_is_left_alone():
    Path("full").mkdir()
    Path("full/notes.txt").touch()
    with pytest.raises(UsageError, match="--out full is not empty; choose another folder"):
        new_folder(Path("full"), "X", 0)
    Path("full/checkpoint.safetensors").touch()
    with pytest.raises(UsageError, match="--out full is not empty; --resume full goes on with its run"):
        new_folder(Path("full"), "X", 0)


def test_a_folder_that_cannot_be_made_is_said_with_the_reason():
    Path("file").touch()
    for path in ("file", "file/deeper"):
        with pytest.raises(UsageError, match=f"^--out {path} cannot be a folder: .*; choose another one$"):
            new_folder(Path(path), "X", 0)
    Path("runs").touch()
    said = "^runs/X-seed0 cannot be made: Not a directory; name a folder with --out$"
    with pytest.raises(UsageError, match=said):
        new_folder(None, "X", 0)


def test_a_checkpoint_is_found_by_its_file_and_by_its_folder():
    Path("run").mkdir()
    Path("run/checkpoint.safetensors").touch()
    assert find_checkpoint(Path("run")) == find_checkpoint(Path("run/checkpoint.safetensors"))
    for path in (Path("nowhere"), Path()):
        with pytest.raises(UsageError, match="no checkpoint at"):
            find_checkpoint(path)


def test_the_way_on_is_the_checkpoint_if_there_is_one(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.way_on == "nothing was saved to go on with: start again"
    folder.checkpoint.touch()
    assert folder.way_on == f"swath train --resume {tmp_path} goes on from what was saved"


def test_a_folder_is_held_by_one_process_at_a_time(tmp_path):
    said = f"another `swath dance` is at work in {tmp_path}; wait for it, or give another folder"
    with held(tmp_path, "swath dance"), pytest.raises(UsageError, match=said), held(tmp_path, "swath dance"):
        pass
    with held(tmp_path, "swath dance"):
        assert not any(tmp_path.iterdir())


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
