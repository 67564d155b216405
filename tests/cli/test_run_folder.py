from contextlib import suppress
from pathlib import Path

import pytest

from swath.cli import hold
from swath.cli.failure import UsageError
from swath.cli.folder import RunFolder, find_checkpoint, new_folder
from swath.report.atomic import replacing


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


@pytest.mark.parametrize("ask", [find_checkpoint, lambda path: new_folder(path, "X", 0)])
def test_a_run_that_ended_before_its_first_checkpoint_says_how_to_begin_again(ask):
    Path("dead").mkdir()
    Path("dead/metrics.csv").touch()
    kept = "dead holds nothing of worth, and has to be deleted first only if --out names it again"
    said = f"nothing was saved to go on with: start again; {kept}"
    with pytest.raises(UsageError, match=f"; {said}$"):
        ask(Path("dead"))
    with RunFolder(Path("dead")).held(), pytest.raises(UsageError, match="another `swath train` is at work in dead"):
        ask(Path("dead"))
    Path("dead/best.safetensors").touch()
    with pytest.raises(UsageError, match=r"train --resume dead/best\.safetensors goes on from its best evaluation$"):
        ask(Path("dead"))


def test_a_file_is_no_folder():
    Path("file").touch()
    with pytest.raises(UsageError, match="--out file is a file"):
        new_folder(Path("file"), "X", 0)


def test_a_folder_that_cannot_be_made_is_said_with_the_reason():
    Path("file").touch()
    said = "^--out file/deeper cannot be a folder: Not a directory; choose another one$"
    with pytest.raises(UsageError, match=said):
        new_folder(Path("file/deeper"), "X", 0)
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
    assert folder.way_on.startswith("nothing was saved to go on with: start again")
    folder.best.touch()
    assert folder.way_on == f"swath train --resume {folder.best} goes on from its best evaluation"
    folder.checkpoint.touch()
    assert folder.way_on == f"swath train --resume {tmp_path} goes on from what was saved"


def test_two_processes_never_train_in_one_folder():
    folder = new_folder(Path("run"), "X", 0)
    said = "another `swath train` is at work in run; wait for it"
    with folder.held(), pytest.raises(UsageError, match=said), RunFolder(Path("run")).held():
        pass
    with folder.held():
        assert not any(folder.path.iterdir())


def test_where_a_disk_or_a_system_has_no_locks_runs_go_on_without(monkeypatch):
    folder = new_folder(Path("run"), "X", 0)
    monkeypatch.setattr(hold.fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError("no locks available")))
    with folder.held():
        pass
    monkeypatch.setattr(hold, "fcntl", None)
    with folder.held():
        pass


def test_what_a_killed_run_had_not_finished_writing_is_removed():
    folder = new_folder(Path("run"), "X", 0)
    folder.checkpoint.touch()
    with suppress(SystemExit), replacing(folder.checkpoint) as draft:
        left = draft.with_name(draft.name.replace(".tmp", "0.tmp"))
        left.touch()
        raise SystemExit
    assert left.exists()
    with folder.held():
        assert list(folder.path.iterdir()) == [folder.checkpoint]
