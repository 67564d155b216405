"""The same tests run on a small fake of W&B and, where it is installed, on W&B itself, offline."""

import json
import struct
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from swath.report.wandb_sink import ID_FILE, WandbSink

STEPS = [(10, {"train/return": 1.5}), (20, {"train/return": 2.5, "eval/reward": 3.0})]
ROWS = [{"frames": 10, "train/return": 1.5}, {"frames": 20, "train/return": 2.5, "eval/reward": 3.0}]
BLOCK, HEADER, FULL, LAST = 32768, 7, 1, 4


class FakeRun:
    def __init__(self, home, number, given):
        self.id = given.get("id") or f"id{number}"
        self.dir = str(Path(home) / "wandb" / f"offline-run-{number}-{self.id}" / "files")
        Path(self.dir).mkdir(parents=True)
        self.offline, self.rows = True, []

    def define_metric(self, name, *, step_metric):
        assert (name, step_metric) == ("*", "frames")

    def log(self, row):
        self.rows.append(row)

    def finish(self):
        (Path(self.dir).parent / "rows.json").write_text(json.dumps(self.rows))


class FakeWandb(ModuleType):
    class Error(Exception):
        pass

    def __init__(self):
        super().__init__("wandb")
        self.Settings, self.given = SimpleNamespace, []

    def init(self, *, settings, reinit, dir, **given):  # noqa: A002  as W&B spells it
        if given["mode"] == "online":
            raise self.Error("No API key configured. Use `wandb login` to log in.")
        assert (settings.silent, settings.console, reinit) == (True, "off", "create_new")
        assert Path(dir).is_dir()
        self.given.append(given)
        return FakeRun(dir, len(self.given), given)


def rows_of_fake(place):
    return json.loads((Path(place) / "rows.json").read_text())


def records(data):
    """Those of a log in LevelDB's format: blocks of parts with a header of checksum, length and kind."""
    at, whole = 7, b""
    while at < len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        at += HEADER + length
        whole += data[at - length : at]
        if kind in (FULL, LAST):
            yield whole
            whole = b""


def rows_of_real(place):
    """What lies in the file of an offline run."""
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()  # its own process writes on for a moment after a run was finished
    (file,) = Path(place).glob("*.wandb")
    rows = []
    for data in records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            rows.append({name: json.loads(text) for name, text in items.items() if not name.startswith("_")})
    return rows


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.filterwarnings("ignore"))])
def rows_at(request, monkeypatch):
    """Reads the rows of a run that is finished."""
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_API_KEY", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    if request.param == "real":
        pytest.importorskip("wandb")
        return rows_of_real
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb())
    return rows_of_fake


def written(folder, resume_at=None):
    sink = WandbSink(folder, resume_at, name="mine", mode="offline")
    for frames, metrics in STEPS:
        sink.log(frames, metrics)
    sink.close()
    sink.close()
    return sink.place


def test_an_offline_run_holds_a_row_per_call_with_its_frames(rows_at, tmp_path):
    place = written(tmp_path)
    assert Path(place).parent == tmp_path / "wandb"
    assert rows_at(place) == ROWS


def test_a_resumed_run_goes_on_under_its_id(rows_at, tmp_path):
    first = written(tmp_path)
    kept = (tmp_path / ID_FILE).read_text()
    second = written(tmp_path, resume_at=20)
    assert (tmp_path / ID_FILE).read_text() == kept
    assert first != second
    assert all(kept.strip() in Path(place).name for place in (first, second))


def test_a_resumed_run_without_an_id_begins_a_new_one(rows_at, tmp_path):
    assert rows_at(written(tmp_path, resume_at=20)) == ROWS


def test_the_run_of_another_is_not_gone_on_with(rows_at, tmp_path):
    written(tmp_path)
    with pytest.raises(FileExistsError, match="wandb-run-id names another run; resume it or choose a new folder"):
        WandbSink(tmp_path, mode="offline")


def test_without_a_login_it_says_what_to_do(rows_at, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(OSError, match=r"W&B begins no run: .*wandb login.* WANDB_MODE=offline"):
        WandbSink(tmp_path, mode="online")


def test_the_project_is_what_was_given_or_what_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", fake := FakeWandb())
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    WandbSink(tmp_path / "a", mode="offline")
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    WandbSink(tmp_path / "b", mode="offline")
    WandbSink(tmp_path / "c", mode="offline", project="mine")
    assert [given["project"] for given in fake.given] == ["swath", "theirs", "mine"]


def test_a_missing_wandb_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r'pip install "swath\[wandb\]"'):
        WandbSink(tmp_path)
