"""`swath train --log`: further logs than `metrics.csv`."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from cli_toys import TINY

from swath.cli.failure import UsageError
from swath.cli.options import MODULES, parse_logs
from swath.report import sinks as all_sinks
from swath.report.sinks import read_rows

RUN = Path("runs/CartPole-v1-seed0")
QUICK = [*TINY, "--no-video", "--eval-backend", "none"]


class Noted:
    """A sink that keeps its rows."""

    place = "nowhere"

    def __init__(self, arguments, settings):
        self.arguments, self.settings, self.rows, self.closed = arguments, settings, {}, 0

    def log(self, frames, metrics):
        self.rows[frames] = dict(metrics)

    def close(self):
        self.closed += 1


@pytest.fixture
def noted(monkeypatch):
    """Replace the sinks of the extras; return the opened ones by name."""
    opened = {}

    def instead_of(name):
        def make(*arguments, **settings):
            return opened.setdefault(name, Noted(arguments, settings))

        return make

    for module in MODULES.values():
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
    for name in ("WandbSink", "MlflowSink", "PrometheusSink", "TensorBoardSink"):
        monkeypatch.setattr(all_sinks, name, instead_of(name))
    return opened


def test_every_log_gets_every_row_and_is_closed(swath, noted):
    code, out, err = swath("train", "CartPole-v1", *QUICK, "--log", "csv,wandb:mine,mlflow:theirs,prometheus:0")
    assert (code, err) == (0, [])
    assert set(noted) == {"WandbSink", "MlflowSink", "PrometheusSink"}
    _, rows = read_rows(RUN / "metrics.csv")
    for sink in noted.values():
        assert [str(frames) for frames in sink.rows] == [row["frames"] for row in rows] == ["128", "256"]
        assert sink.closed
    about = {"name": RUN.name}
    assert noted["WandbSink"].settings == {**about, "project": "mine"}
    assert noted["MlflowSink"].settings == {**about, "experiment": "theirs"}
    assert noted["PrometheusSink"].arguments == (0, "127.0.0.1")
    assert "wandb: nowhere" in out
    assert not (RUN / "tensorboard").exists()


@pytest.mark.parametrize(("name", "module"), MODULES.items())
def test_a_log_whose_extra_is_missing_is_refused_before_anything_begins(swath, monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    code, out, err = swath("train", "CartPole-v1", *QUICK, "--log", name)
    assert (code, out, len(err)) == (2, [], 1)
    assert f'{module} is needed for --log {name}: pip install "swath[{name}]"' in err[0]
    assert not RUN.exists()


@pytest.mark.parametrize("text", ["vandb", "csv:x", "wandb:", "prometheus:x", ""])
def test_unknown_logs_are_refused(text):
    with pytest.raises(UsageError, match=r"must be of csv, tensorboard, wandb\[:PROJECT\]"):
        parse_logs(text)
