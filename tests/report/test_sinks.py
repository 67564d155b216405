"""Sinks to files and services, a group of sinks, and a sink that is fed from a thread."""

import math
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from urllib.request import urlopen

import pytest

from swath.report import sinks
from swath.report.sinks import (
    CsvSink,
    DetachedSink,
    MlflowSink,
    PrometheusSink,
    SinkGroup,
    TensorBoardSink,
    WandbSink,
)
from toys import DEADLINE_S


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.csv"


def logged(sink, *rows):
    for frames, metrics in rows:
        sink.log(frames, metrics)
    sink.close()
    sink.close()
    return sink


def lines(path):
    return path.read_text().splitlines()


def test_a_column_that_comes_later_widens_the_one_header_and_every_row_is_on_disk_at_once(path):
    sink = CsvSink(path)
    sink.log(10, {"a": 1.5, "b": 2})
    assert lines(path) == ["frames,a,b", "10,1.5,2"]
    logged(sink, (20, {"a": 2.0, "eval": 0.5}), (30, {"eval": 0.75}))
    assert lines(path) == ["frames,a,b,eval", "10,1.5,2,", "20,2.0,,0.5", "30,,,0.75"]


def test_a_resumed_file_loses_the_rows_beyond_the_resumed_frame_and_a_torn_last_line(path):
    CsvSink(path, resume_at=20).close()  # a new file
    path.write_text("frames,a\n10,1.0\n20,2.0\n30,3.0\n40,4.")
    sink = CsvSink(path, resume_at=20)
    assert lines(path) == ["frames,a", "10,1.0", "20,2.0"]
    logged(sink, (30, {"a": 33.0}))
    assert lines(path) == ["frames,a", "10,1.0", "20,2.0", "30,33.0"]


def test_other_files_do_not_change(path):
    path.write_text("step,a\n1,2\n")
    with pytest.raises(FileExistsError, match=r"metrics\.csv holds the metrics of another run; resume it"):
        CsvSink(path)
    with pytest.raises(ValueError, match="first column must be 'frames'"):
        CsvSink(path, resume_at=5)


def scalars(folder, tag):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_tensorboard_has_scalars_at_their_frames_and_hides_what_lies_beyond_the_resumed_one(tmp_path, monkeypatch):
    logged(TensorBoardSink(tmp_path), *[(frames, {"train/return": 1.0}) for frames in (10, 20, 30)])
    later = time.time() + 1.0
    monkeypatch.setattr(time, "time", lambda: later)  # files are read in the order of their names, which say the second
    logged(TensorBoardSink(tmp_path, resume_at=20), (30, {"train/return": 2.0}))
    assert scalars(tmp_path, "train/return") == [(10, 1.0), (20, 1.0), (30, 2.0)]


class RecordingSink:
    """A sink that keeps its rows; `gate` delays it, `fails` is the row that it refuses."""

    def __init__(self, fails=None, at_close=False):
        self.rows, self.closed, self.fails, self.at_close = [], 0, fails, at_close
        self.gate, self.ended = threading.Event(), threading.Event()
        self.gate.set()

    def log(self, frames, metrics):
        assert self.gate.wait(DEADLINE_S)
        if frames == self.fails:
            raise ConnectionError("no answer")
        self.rows.append((frames, dict(metrics)))

    def close(self):
        self.closed += 1
        self.ended.set()
        if self.at_close:
            raise OSError("the door is stuck")


def test_a_group_passes_metrics_on_and_closes_all_sinks_even_if_one_fails():
    first, second = RecordingSink(at_close=True), RecordingSink(at_close=True)
    group = SinkGroup([first, second])
    group.log(5, {"a": 1.0})
    with pytest.raises(OSError, match="the door is stuck"):
        group.close()
    assert first.rows == second.rows == [(5, {"a": 1.0})]
    assert (first.closed, second.closed) == (1, 1)


@pytest.fixture
def errors():
    return []


def test_a_detached_sink_gets_every_row_as_it_was_when_it_was_logged(errors):
    sink, metrics = RecordingSink(), {"a": 1.0}
    detached = DetachedSink(sink, errors.append)
    detached.log(10, metrics)
    metrics["a"] = 2.0
    detached.log(20, metrics)
    detached.close()
    detached.close()
    assert sink.rows == [(10, {"a": 1.0}), (20, {"a": 2.0})]
    assert (sink.closed, errors) == (1, [])


def test_a_refused_row_is_reported_once_and_closes_the_sink(errors):
    sink = RecordingSink(fails=20)
    detached = DetachedSink(sink, errors.append)
    for frames in (10, 20):
        detached.log(frames, {})
    assert sink.ended.wait(DEADLINE_S)
    detached.log(30, {})
    detached.close()
    assert [str(error) for error in errors] == ["no answer"]
    assert (sink.rows, sink.closed) == ([(10, {})], 1)


@pytest.mark.parametrize(
    ("rows", "why"), [(9, "it does not keep up: 3 rows wait for it"), (1, "it is not done after 0.01 s; pending")]
)
def test_a_sink_that_hangs_does_not_block(rows, why, errors, monkeypatch):
    monkeypatch.setattr(sinks, "MAX_WAITING", 3)
    sink = RecordingSink()
    sink.gate.clear()
    detached = DetachedSink(sink, errors.append, goodbye_s=0.01)
    for frames in range(rows):
        detached.log(frames, {})
    detached.close()
    (error,) = errors
    assert str(error).startswith(why)
    sink.gate.set()
    assert sink.ended.wait(DEADLINE_S)


# Services: W&B and MLflow as small fakes, Prometheus itself


class Refused(Exception):
    pass


class FakeWandb(ModuleType):
    """The part of W&B that is used; `runs` has arguments and rows of all runs."""

    Error = Refused

    def __init__(self):
        super().__init__("wandb")
        self.Settings, self.runs = SimpleNamespace, []

    def init(self, *, settings, reinit, dir, **options):  # noqa: A002  as W&B spells it
        if options["mode"] == "online":
            raise Refused("No API key configured. Use `wandb login` to log in.")
        assert (settings.silent, settings.console, reinit) == (True, "off", "create_new")
        run = SimpleNamespace(
            options=options, rows=[], axes=[], offline=True, id=options.get("id", f"id{len(self.runs)}")
        )
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
        self.rows += [(run, metric.step, metric.key, metric.value) for metric in metrics]


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


def test_a_run_of_wandb_has_a_row_per_call_and_is_resumed_under_its_id(wandb, tmp_path):
    sink = logged(WandbSink(tmp_path, name="mine", mode="offline"), (10, {"a": 1.5}), (20, {"a": 2.5, "b": 3.0}))
    assert Path(sink.place).parent == tmp_path / "wandb"
    assert wandb.runs[0].rows == [{"frames": 10, "a": 1.5}, {"frames": 20, "a": 2.5, "b": 3.0}]
    assert wandb.runs[0].axes == [("*", "frames")]
    assert wandb.runs[0].options == {"project": "swath", "name": "mine", "mode": "offline"}
    logged(WandbSink(tmp_path, 20, mode="offline"))
    assert (wandb.runs[1].options["id"], wandb.runs[1].options["resume"]) == (wandb.runs[0].id, "allow")
    logged(WandbSink(tmp_path / "other", 20, mode="offline"))  # where no id was kept
    assert "id" not in wandb.runs[2].options


def test_a_run_of_mlflow_has_metrics_at_their_frames_and_is_resumed_under_its_id(mlflow, tmp_path):
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


def scraped(sink):
    with urlopen(sink.place) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[:1] != "#")}


def test_prometheus_scrapes_the_newest_values_with_a_label_per_worker_until_the_port_is_free_again():
    pytest.importorskip("prometheus_client")
    threads = set(threading.enumerate())
    sink = PrometheusSink(port=0)
    sink.log(10, {"train/return": 1.5, "old": 1, "worker_0/frames": 6, "worker_12/frames": 4, "workers": 2})
    sink.log(20, {"train/return": 2.5})
    assert scraped(sink) == {
        "swath_frames": 20,
        "swath_train_return": 2.5,
        "swath_old": 1,
        'swath_per_worker_frames{worker="0"}': 6,
        'swath_per_worker_frames{worker="12"}': 4,
        "swath_workers": 2,
    }
    with pytest.raises(OSError, match=rf"cannot be served on 127\.0\.0\.1:{sink.port} .*; choose another port"):
        PrometheusSink(port=sink.port)
    logged(sink)
    logged(PrometheusSink(port=sink.port))
    assert set(threading.enumerate()) <= threads
