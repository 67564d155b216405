"""The same tests run on a small fake of MLflow and, where it is installed, on its file store."""

import math
import sys
from types import ModuleType, SimpleNamespace

import pytest

from swath.report.mlflow_sink import ID_FILE, MOST_METRICS, MlflowSink


class Refused(Exception):
    pass


class FakeStore:
    def __init__(self):
        self.runs, self.experiments, self.calls, self.down = {}, {}, [], False


STORES = {}


class FakeClient:
    """The part of `MlflowClient` that is used; stores are found again by their URI."""

    def __init__(self, tracking_uri):
        self.store = STORES.setdefault(tracking_uri, FakeStore())

    def get_experiment_by_name(self, name):
        return self.store.experiments.get(name)

    def create_experiment(self, name):
        self.store.experiments[name] = SimpleNamespace(experiment_id=name)
        return name

    def create_run(self, experiment, run_name):
        name = f"run{len(self.store.runs)}"
        info = SimpleNamespace(run_id=name, status="RUNNING", run_name=run_name, experiment_id=experiment)
        self.store.runs[name] = SimpleNamespace(info=info, metrics=[])
        return self.store.runs[name]

    def get_run(self, run):
        if run not in self.store.runs:
            raise Refused(f"Run '{run}' not found")
        return self.store.runs[run]

    def update_run(self, run, status):
        self.get_run(run).info.status = status

    def set_terminated(self, run):
        self.update_run(run, "FINISHED")

    def log_batch(self, run, metrics):
        if self.store.down:
            raise Refused("no connection")
        assert len(metrics) <= 1000
        assert not any(set(metric.key) & set("()=%") for metric in metrics)
        self.store.calls.append(len(metrics))
        self.get_run(run).metrics += metrics

    def get_metric_history(self, run, name):
        return [metric for metric in self.get_run(run).metrics if metric.key == name]


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.filterwarnings("ignore"))])
def client(request, monkeypatch, tmp_path):
    """Of a store in a folder."""
    uri = f"file:{tmp_path}/mlruns"
    if request.param == "real":
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        return pytest.importorskip("mlflow").MlflowClient(tracking_uri=uri)
    fake = ModuleType("mlflow")
    fake.MlflowClient, fake.get_tracking_uri = FakeClient, lambda: uri
    fake.exceptions = SimpleNamespace(MlflowException=Refused)
    fake.entities = SimpleNamespace(
        Metric=lambda key, value, timestamp, step: SimpleNamespace(key=key, value=value, timestamp=timestamp, step=step)
    )
    STORES.clear()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.entities", fake.entities)
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", fake.exceptions)
    return FakeClient(uri)


def opened(tmp_path, resume_at=None):
    return MlflowSink(tmp_path, resume_at, name="mine", tracking_uri=f"file:{tmp_path}/mlruns")


def run_in(tmp_path):
    return (tmp_path / ID_FILE).read_text().strip()


def history(client, tmp_path, name):
    return [(one.step, one.value) for one in client.get_metric_history(run_in(tmp_path), name)]


def test_metrics_stand_at_their_frames_and_the_run_is_finished(client, tmp_path):
    sink = opened(tmp_path)
    assert client.get_run(run_in(tmp_path)).info.status == "RUNNING"
    sink.log(10, {"train/return": 1.5})
    sink.log(20, {"train/return": 2.5, "eval/reward": math.nan})
    sink.close()
    sink.close()
    assert history(client, tmp_path, "train/return") == [(10, 1.5), (20, 2.5)]
    assert [step for step, value in history(client, tmp_path, "eval/reward") if math.isnan(value)] == [20]
    info = client.get_run(run_in(tmp_path)).info
    assert (info.status, info.run_name) == ("FINISHED", "mine")
    assert info.experiment_id == client.get_experiment_by_name("swath").experiment_id


def test_a_resumed_run_goes_on_under_its_id(client, tmp_path):
    first = opened(tmp_path)
    first.log(10, {"a": 1.0})
    first.close()
    before = run_in(tmp_path)
    second = opened(tmp_path, resume_at=10)
    assert client.get_run(before).info.status == "RUNNING"
    second.log(20, {"a": 2.0})
    second.close()
    assert run_in(tmp_path) == before
    assert history(client, tmp_path, "a") == [(10, 1.0), (20, 2.0)]


def test_a_second_run_is_another_run_of_the_same_experiment(client, tmp_path):
    opened(tmp_path).close()
    uri = f"file:{tmp_path}/mlruns"
    MlflowSink(tmp_path / "other", tracking_uri=uri).close()
    one, other = (client.get_run(run_in(folder)).info for folder in (tmp_path, tmp_path / "other"))
    assert one.run_id != other.run_id
    assert one.experiment_id == other.experiment_id


def test_names_that_mlflow_does_not_allow_are_changed(client, tmp_path):
    sink = opened(tmp_path)
    sink.log(5, {"loss (mean)=1%": 1.0})
    sink.close()
    assert history(client, tmp_path, "loss _mean__1_") == [(5, 1.0)]


def test_a_row_of_any_width_is_taken(client, tmp_path):
    sink = opened(tmp_path)
    sink.log(10, {f"m{number}": float(number) for number in range(MOST_METRICS + 1)})
    assert history(client, tmp_path, f"m{MOST_METRICS}") == [(10, float(MOST_METRICS))]
    sink.close()


def test_the_run_of_another_is_not_gone_on_with(client, tmp_path):
    opened(tmp_path).close()
    with pytest.raises(FileExistsError, match="mlflow-run-id names another run; resume it or choose a new folder"):
        opened(tmp_path)


def test_a_run_that_the_store_does_not_know_is_said(client, tmp_path):
    (tmp_path / ID_FILE).write_text("f" * 32)
    with pytest.raises(OSError, match=r"MLflow at file:.*mlruns does not do its part: Run .*f.* not found"):
        opened(tmp_path, resume_at=10)


def test_a_missing_mlflow_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ImportError, match=r'pip install "swath\[mlflow\]"'):
        MlflowSink(tmp_path)
