"""Sinks for services of others: Weights & Biases, MLflow, Prometheus."""

from __future__ import annotations

import os
import re
import time
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swath.extras import need

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FRAMES, EXPERIMENT = "frames", "swath"
MOST_METRICS = 1000
"""That MLflow takes at once."""

PORT, LOCAL = 9464, "127.0.0.1"
UNFIT_FOR_MLFLOW, UNFIT_FOR_PROMETHEUS = re.compile(r"[^\w\-. :/]", re.ASCII), re.compile(r"[^a-zA-Z0-9_]+")
OF_WORKER = re.compile(r"worker_(\d+)/(.+)")


def kept_id(path: Path, resume_at: int | None) -> str | None:
    """The id under which a service knows the run, if it was kept in this file, whose folder is made.

    Raises:
        FileExistsError: `resume_at` is `None` and the file is there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        return None
    if resume_at is None:
        raise FileExistsError(f"{path} names another run; resume it or choose a new folder")
    return path.read_text(encoding="utf-8").strip() or None


class WandbSink:
    """Writes one row of history per call; its x axis is the frame count, as the metric `frames`.

    A resumed run goes on under its id. W&B drops no rows: those beyond the resumed frame stay, beside those that the
    resumed run writes again. Runs that are written offline are sent by `wandb sync`.

    Args:
        folder: where the id is kept and W&B writes its files, in `wandb/`; it is made if it is missing.
        resume_at: `None` starts a new run; a frame count goes on with the one whose id is kept there.
        project: of W&B; `None` for the one that `WANDB_PROJECT` names, else `swath`.
        name: what W&B calls the run; `None` lets it choose.
        mode: `"online"`, `"offline"` or `"disabled"`; `None` for what `WANDB_MODE` says, else online.

    Attributes:
        place: where the run can be seen: its address, or the folder of an offline run.

    Raises:
        ImportError: W&B is not installed; the message names the extra.
        FileExistsError: `resume_at` is `None`, and an id is kept in the folder.
        OSError: W&B begins no run, for lack of a login or of the network.
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
        about = {"project": project or os.environ.get("WANDB_PROJECT", "swath"), "name": name, "mode": mode}
        if known := kept_id(file, resume_at):
            about |= {"id": known, "resume": "allow"}
        quiet = wandb.Settings(silent=True, console="off")
        try:
            self._run = wandb.init(settings=quiet, reinit="create_new", dir=str(file.parent), **about)
        except wandb.Error as error:
            hint = "Or write offline with mode='offline' or WANDB_MODE=offline"
            raise OSError(f"W&B begins no run: {error} {hint}") from error
        file.write_text(f"{self._run.id}\n", encoding="utf-8")
        self._run.define_metric("*", step_metric=FRAMES)
        self.place = str(Path(self._run.dir).parent if self._run.offline else self._run.url)

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Add one row; W&B sends or writes it from a process of its own."""
        self._run.log({FRAMES: frames, **metrics})

    def close(self) -> None:
        """Wait until everything is sent or written, and end the run."""
        self._run.finish()


class MlflowSink:
    """Writes the metrics of a run to MLflow, with the frame count as the step.

    Characters that MLflow does not allow in names become `_`. A resumed run goes on under its id; rows beyond the
    resumed frame stay, beside those that it writes again.

    Args:
        folder: where the id is kept; it is made if it is missing.
        resume_at: `None` starts a new run; a frame count goes on with the one whose id is kept there.
        experiment: of MLflow; it is made if it is missing.
        name: what MLflow calls the run; `None` lets it choose.
        tracking_uri: where MLflow keeps runs, such as `sqlite:///mlflow.db`, `file:mlruns` or `http://host:5000`;
            `None` for what it has been told (`MLFLOW_TRACKING_URI`), else its default in this directory.

    Attributes:
        place: where the run can be seen: the tracking URI.

    Raises:
        ImportError: MLflow is not installed; the message names the extra.
        FileExistsError: `resume_at` is `None`, and an id is kept in the folder.
        OSError: MLflow begins no run.
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
        self._refusal: type[Exception] = import_module("mlflow.exceptions").MlflowException
        file = Path(folder) / "mlflow-run-id"
        known = kept_id(file, resume_at)
        self.place = tracking_uri or str(mlflow.get_tracking_uri())
        with self._answered():
            self._client: Any = mlflow.MlflowClient(tracking_uri=tracking_uri)
            if known:
                self._client.update_run(known, status="RUNNING")
            else:
                found = self._client.get_experiment_by_name(experiment)
                where = found.experiment_id if found else self._client.create_experiment(experiment)
                known = str(self._client.create_run(where, run_name=name).info.run_id)
        file.write_text(f"{known}\n", encoding="utf-8")
        self._run = known

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Add one value per metric.

        Raises:
            OSError: MLflow does not take them.
        """
        now = int(time.time() * 1000)
        names = {UNFIT_FOR_MLFLOW.sub("_", name): float(value) for name, value in metrics.items()}
        row = [self._metric(*item, now, frames) for item in names.items()]
        with self._answered():
            for first in range(0, len(row), MOST_METRICS):
                self._client.log_batch(self._run, metrics=row[first : first + MOST_METRICS])

    def close(self) -> None:
        """End the run; twice is fine."""
        with self._answered():
            self._client.set_terminated(self._run)

    @contextmanager
    def _answered(self) -> Iterator[None]:
        try:
            yield
        except self._refusal as error:
            raise OSError(f"MLflow at {self.place} does not do its part: {error}") from error


class PrometheusSink:
    """Serves `http://<addr>:<port>/metrics` with one gauge per metric, until it is closed.

    `train/return` is `swath_train_return`, and `worker_3/frames` is `swath_per_worker_frames{worker="3"}`, for
    `worker_frames` is the sum of these. Only what was handed to `log` is shown; a scrape asks nobody.

    Args:
        port: where to listen; 0 for one that is free.
        addr: the address to listen on: this machine's own by default; `""` for all, so that others can scrape it.

    Attributes:
        port: where it listens.
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
        """Show these values from now on, and those of other metrics as before.

        Raises:
            ValueError: two metrics have names that are the same to Prometheus.
        """
        for name, value in {FRAMES: frames, **metrics}.items():
            worker = OF_WORKER.fullmatch(name)
            shown, labels = (f"per_worker_{worker[2]}", ("worker",)) if worker else (name, ())
            if shown not in self._gauges:
                full, about = "swath_" + UNFIT_FOR_PROMETHEUS.sub("_", shown), f"{shown} of a run of Swath"
                self._gauges[shown] = self._client.Gauge(full, about, labels, registry=self._registry)
            gauge = self._gauges[shown]
            (gauge.labels(worker[1]) if worker else gauge).set(value)

    def close(self) -> None:
        """Stop serving; the port is free then. Twice is fine."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
