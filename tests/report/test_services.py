"""Sinks for services of others: W&B and MLflow as small fakes, Prometheus itself."""

import math
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from urllib.request import urlopen

import pytest

from swath.report.services import MlflowSink, PrometheusSink, WandbSink


class Refused(Exception):
    pass


class FakeWandb(ModuleType):
    """The part of W&B that is used; `runs` has what was given and logged, in order."""

    Error = Refused

    def __init__(self):
        super().__init__("wandb")
        self.Settings, self.runs = SimpleNamespace, []

    def init(self, *, settings, reinit, dir, **given):  # noqa: A002  as W&B spells it
        if given["mode"] == "online":
            raise Refused("No API key configured. Use `wandb login` to log in.")
        assert (settings.silent, settings.console, reinit) == (True, "off", "create_new")
        run = SimpleNamespace(given=given, rows=[], axes=[], offline=True, id=given.get("id", f"id{len(self.runs)}"))
        run.dir = str(Path(dir) / "wandb" / f"offline-run-{len(self.runs)}-{run.id}" / "files")
        run.define_metric = lambda name, step_metric: run.axes.append((name, step_metric))
        run.log, run.finish = run.rows.append, lambda: None
        self.runs.append(run)
        return run


class FakeMlflow(ModuleType):
    """The part of MLflow that is used, with one store."""

    def __init__(self):
        super().__init__("mlflow")
        self.runs, self.experiments, self.rows = {}, {}, []
        self.MlflowClient = lambda tracking_uri: self
        self.get_experiment_by_name = self.experiments.get

    def get_tracking_uri(self):
        return "file:mlruns"

    def create_experiment(self, name):
        self.experiments[name] = SimpleNamespace(experiment_id=name)
        return name

    def create_run(self, experiment, run_name):
        info = SimpleNamespace(run_id=f"run{len(self.runs)}", status="RUNNING", name=run_name, experiment=experiment)
        self.runs[info.run_id] = info
        return SimpleNamespace(info=info)

    def update_run(self, run, status):
        if run not in self.runs:
            raise Refused(f"Run '{run}' not found")
        self.runs[run].status = status

    def set_terminated(self, run):
        self.update_run(run, "FINISHED")

    def log_batch(self, run, metrics):
        assert len(metrics) <= 1000
        self.rows += [(run, one.step, one.key, one.value) for one in metrics]


@pytest.fixture
def wandb(monkeypatch):
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    monkeypatch.setitem(sys.modules, "wandb", fake := FakeWandb())
    return fake


@pytest.fixture
def mlflow(monkeypatch):
    fake, names = FakeMlflow(), ("key", "value", "timestamp", "step")
    entities = SimpleNamespace(Metric=lambda *values: SimpleNamespace(**dict(zip(names, values, strict=True))))
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", SimpleNamespace(MlflowException=Refused))
    return fake


def logged(sink, *rows):
    for frames, metrics in rows:
        sink.log(frames, metrics)
    sink.close()
    sink.close()
    return sink


def test_a_run_of_wandb_holds_a_row_per_call_and_goes_on_under_its_id(wandb, tmp_path):
    sink = logged(WandbSink(tmp_path, name="mine", mode="offline"), (10, {"a": 1.5}), (20, {"a": 2.5, "b": 3.0}))
    assert Path(sink.place).parent == tmp_path / "wandb"
    assert wandb.runs[0].rows == [{"frames": 10, "a": 1.5}, {"frames": 20, "a": 2.5, "b": 3.0}]
    assert wandb.runs[0].axes == [("*", "frames")]
    assert wandb.runs[0].given == {"project": "swath", "name": "mine", "mode": "offline"}
    logged(WandbSink(tmp_path, 20, mode="offline"))
    assert (wandb.runs[1].given["id"], wandb.runs[1].given["resume"]) == (wandb.runs[0].id, "allow")
    logged(WandbSink(tmp_path / "other", 20, mode="offline"))  # where no id was kept
    assert "id" not in wandb.runs[2].given


def test_a_run_of_mlflow_holds_metrics_at_their_frames_and_goes_on_under_its_id(mlflow, tmp_path):
    sink = MlflowSink(tmp_path, name="mine")
    assert (sink.place, mlflow.runs["run0"].status) == ("file:mlruns", "RUNNING")
    logged(sink, (10, {"train/return": 1.5}), (20, {"eval/reward": math.inf, "loss (mean)=1%": 1.0}))
    assert vars(mlflow.runs["run0"]).items() >= {"status": "FINISHED", "name": "mine", "experiment": "swath"}.items()
    sink = MlflowSink(tmp_path, 20)
    assert mlflow.runs["run0"].status == "RUNNING"
    logged(sink, (30, {"train/return": 2.0}))
    values = [(10, "train/return", 1.5), (20, "eval/reward", math.inf), (20, "loss _mean__1_", 1.0)]
    assert mlflow.rows == [("run0", *row) for row in (*values, (30, "train/return", 2.0))]
    logged(MlflowSink(tmp_path / "other", tracking_uri="sqlite:///a.db"))
    assert mlflow.runs["run1"].experiment == "swath"


@pytest.fixture
def prometheus():
    pytest.importorskip("prometheus_client")
    sink = PrometheusSink(port=0)
    yield sink
    sink.close()


def scraped(sink):
    with urlopen(sink.place) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[:1] != "#")}


def test_prometheus_scrapes_the_newest_values_with_a_label_per_worker(prometheus):
    prometheus.log(10, {"train/return": 1.5, "old": 1, "worker_0/frames": 6, "worker_12/frames": 4, "workers": 2})
    prometheus.log(20, {"train/return": 2.5})
    assert scraped(prometheus) == {
        "swath_frames": 20,
        "swath_train_return": 2.5,
        "swath_old": 1,
        'swath_per_worker_frames{worker="0"}': 6,
        'swath_per_worker_frames{worker="12"}': 4,
        "swath_workers": 2,
    }


def test_a_port_that_is_taken_is_said_and_closing_frees_it(prometheus):
    with pytest.raises(OSError, match=rf"cannot be served on 127\.0\.0\.1:{prometheus.port} .*; choose another port"):
        PrometheusSink(port=prometheus.port)
    threads = set(threading.enumerate())
    prometheus.close()
    prometheus.close()
    PrometheusSink(port=prometheus.port).close()
    assert set(threading.enumerate()) < threads
