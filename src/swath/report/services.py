"""Sinks for services: Weights & Biases, MLflow, Prometheus."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from swath.extras import need

FRAMES, EXPERIMENT = "frames", "swath"
MAX_METRICS = 1000
"""Limit of metrics in one request to MLflow."""

PORT, LOCAL = 9464, "127.0.0.1"
NOT_FOR_MLFLOW, NOT_FOR_PROMETHEUS = re.compile(r"[^\w\-. :/]", re.ASCII), re.compile(r"[^a-zA-Z0-9_]+")
WORKER_METRIC = re.compile(r"worker_(\d+)/(.+)")


def read_run_id(path: Path, resume_at: int | None) -> str | None:
    """Return the service's id of the run from a file, or `None`; create the folder of the file.

    Raises:
        FileExistsError: `resume_at` is `None` and the file exists.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        return None
    if resume_at is None:
        raise FileExistsError(f"{path} names another run; resume it or choose a new folder")
    return path.read_text(encoding="utf-8").strip() or None


class WandbSink:
    """A sink to Weights & Biases: one row of history per call, with the frame count as x axis (metric `frames`).

    A resumed run keeps its id. W&B drops no rows: rows beyond the resumed frame stay, and the resumed run writes them
    again. Offline runs are sent by `wandb sync`.

    Args:
        folder: folder for the id and for W&B's files, in `wandb/`; it is created if it is missing.
        resume_at: `None` to start a new run; a frame count to resume the run whose id is in the folder.
        project: project of W&B; `None` for `WANDB_PROJECT`, else `swath`.
        name: name of the run; `None` lets W&B choose.
        mode: `"online"`, `"offline"` or `"disabled"`; `None` for `WANDB_MODE`, else online.

    Attributes:
        place: address of the run, or folder of an offline run.

    Raises:
        ImportError: W&B is not installed; the message names the extra.
        FileExistsError: `resume_at` is `None`, and the folder has an id.
        OSError: W&B starts no run, for example without login or network.
    """

    def __init__(
        self,
        folder: str | Path,
        resume_at: int | None = None,
        *,
        project: str | None = None,
        name: str | None = None,
        mode: str | None = None,
    ) -> None:
        wandb = need("wandb", extra="wandb", why="to write to Weights & Biases")
        file = Path(folder) / "wandb-run-id"
        options = {"project": project or os.environ.get("WANDB_PROJECT", "swath"), "name": name, "mode": mode}
        if run_id := read_run_id(file, resume_at):
            options |= {"id": run_id, "resume": "allow"}
        quiet = wandb.Settings(silent=True, console="off")
        try:
            self._run = wandb.init(settings=quiet, reinit="create_new", dir=str(file.parent), **options)
        except wandb.Error as error:
            hint = "Or write offline with mode='offline' or WANDB_MODE=offline"
            raise OSError(f"W&B starts no run: {error} {hint}") from error
        file.write_text(f"{self._run.id}\n", encoding="utf-8")
        self._run.define_metric("*", step_metric=FRAMES)
        self.place = str(Path(self._run.dir).parent if self._run.offline else self._run.url)

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Add one row, which a process of W&B sends or writes."""
        self._run.log({FRAMES: frames, **metrics})

    def close(self) -> None:
        """Wait until all rows are sent or written, and end the run."""
        self._run.finish()


class MlflowSink:
    """A sink to MLflow, with the frame count as the step.

    Characters that MLflow does not allow in names become `_`. A resumed run keeps its id; rows beyond the resumed frame
    stay, and the resumed run writes them again.

    Args:
        folder: folder for the id; it is created if it is missing.
        resume_at: `None` to start a new run; a frame count to resume the run whose id is in the folder.
        experiment: experiment of MLflow; it is created if it is missing.
        name: name of the run; `None` lets MLflow choose.
        tracking_uri: MLflow's store of runs, such as `sqlite:///mlflow.db`, `file:mlruns` or `http://host:5000`;
            `None` for `MLFLOW_TRACKING_URI`, else MLflow's default in this directory.

    Attributes:
        place: the tracking URI.

    Raises:
        ImportError: MLflow is not installed; the message names the extra.
        FileExistsError: `resume_at` is `None`, and the folder has an id.
        OSError: MLflow starts no run.
    """

    def __init__(
        self,
        folder: str | Path,
        resume_at: int | None = None,
        *,
        experiment: str = EXPERIMENT,
        name: str | None = None,
        tracking_uri: str | None = None,
    ) -> None:
        mlflow = need("mlflow", extra="mlflow", why="to write to MLflow")
        self._metric: Any = import_module("mlflow.entities").Metric
        self._error: type[Exception] = import_module("mlflow.exceptions").MlflowException
        file = Path(folder) / "mlflow-run-id"
        run_id = read_run_id(file, resume_at)
        self.place = tracking_uri or str(mlflow.get_tracking_uri())
        with self._as_os_error():
            self._client: Any = mlflow.MlflowClient(tracking_uri=tracking_uri)
            if run_id:
                self._client.update_run(run_id, status="RUNNING")
            else:
                existing = self._client.get_experiment_by_name(experiment)
                parent = existing.experiment_id if existing else self._client.create_experiment(experiment)
                run_id = str(self._client.create_run(parent, run_name=name).info.run_id)
        file.write_text(f"{run_id}\n", encoding="utf-8")
        self._run = run_id

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Add one value per metric.

        Raises:
            OSError: MLflow does not accept them.
        """
        now = int(time.time() * 1000)
        values = {NOT_FOR_MLFLOW.sub("_", name): float(value) for name, value in metrics.items()}
        row = [self._metric(*item, now, frames) for item in values.items()]
        with self._as_os_error():
            for first in range(0, len(row), MAX_METRICS):
                self._client.log_batch(self._run, metrics=row[first : first + MAX_METRICS])

    def close(self) -> None:
        """End the run; twice is fine."""
        with self._as_os_error():
            self._client.set_terminated(self._run)

    @contextmanager
    def _as_os_error(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            raise OSError(f"MLflow at {self.place} failed: {error}") from error


class PrometheusSink:
    """Serves `http://<addr>:<port>/metrics` with one gauge per metric, until it is closed.

    `train/return` is `swath_train_return`, and `worker_3/frames` is `swath_per_worker_frames{worker="3"}`, since
    `worker_frames` is the sum over workers. A scrape returns the values of the last `log`, without asking workers.

    Args:
        port: port to listen on; 0 for a free one.
        addr: address to listen on, by default reachable from this machine only; `""` for all interfaces.

    Attributes:
        port: port that it listens on.
        place: the address to scrape.

    Raises:
        ImportError: prometheus-client is not installed; the message names the extra.
        OSError: the port is taken, or there is no such address.
    """

    def __init__(self, port: int = PORT, addr: str = LOCAL) -> None:
        self._client = need("prometheus_client", extra="prometheus", why="to serve metrics to Prometheus")
        self._registry = self._client.CollectorRegistry()
        self._gauges: dict[str, Any] = {}
        try:
            self._server, self._thread = self._client.start_http_server(port, addr=addr, registry=self._registry)
        except (OSError, OverflowError) as error:
            raise OSError(f"Prometheus cannot be served on {addr}:{port} ({error}); choose another port") from error
        self.port: int = self._server.server_port
        self.place = f"http://{addr or 'localhost'}:{self.port}/metrics"

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Set the gauges of these metrics; gauges of other metrics keep their values.

        Raises:
            ValueError: two metrics have the same name in Prometheus.
        """
        for name, value in {FRAMES: frames, **metrics}.items():
            worker = WORKER_METRIC.fullmatch(name)
            metric, labels = (f"per_worker_{worker[2]}", ("worker",)) if worker else (name, ())
            if metric not in self._gauges:
                full_name, help_text = "swath_" + NOT_FOR_PROMETHEUS.sub("_", metric), f"{metric} of a run of Swath"
                self._gauges[metric] = self._client.Gauge(full_name, help_text, labels, registry=self._registry)
            gauge = self._gauges[metric]
            (gauge.labels(worker[1]) if worker else gauge).set(value)

    def close(self) -> None:
        """Stop serving and free the port. A second call does nothing."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
