"""Metrics as a run of MLflow."""

from __future__ import annotations

import re
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swath.extras import need
from swath.report.run_id import RunId

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EXPERIMENT = "swath"
ID_FILE = "mlflow-run-id"
UNFIT = re.compile(r"[^\w\-. :/]", re.ASCII)
MOST_METRICS = 1000
"""That MLflow takes at once."""


class MlflowSink:
    """Writes the metrics of a run, with the frame count as the step.

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
        self._mlflow = need("mlflow", extra="mlflow", why="to write to MLflow")
        self._metric: Any = import_module("mlflow.entities").Metric
        self._refusal: type[Exception] = import_module("mlflow.exceptions").MlflowException
        run_id = RunId(Path(folder) / ID_FILE, resume_at)
        self._closed = False
        self.place = tracking_uri or str(self._mlflow.get_tracking_uri())
        self._client: Any = self._asked(lambda: self._mlflow.MlflowClient(tracking_uri=tracking_uri))
        self._run: str = run_id.kept or self._asked(lambda: self._begun(experiment, name))
        if run_id.kept:
            self._asked(lambda: self._client.update_run(self._run, status="RUNNING"))
        run_id.keep(self._run)

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Add one value per metric.

        Raises:
            OSError: MLflow does not take them.
        """
        now = int(time.time() * 1000)
        row = [self._metric(UNFIT.sub("_", name), float(value), now, frames) for name, value in metrics.items()]
        for first in range(0, len(row), MOST_METRICS):
            some = row[first : first + MOST_METRICS]
            self._asked(partial(self._client.log_batch, self._run, metrics=some))

    def close(self) -> None:
        """End the run; twice is fine."""
        if not self._closed:
            self._closed = True
            self._asked(lambda: self._client.set_terminated(self._run))

    def _begun(self, experiment: str, name: str | None) -> str:
        found = self._client.get_experiment_by_name(experiment)
        where = found.experiment_id if found else self._client.create_experiment(experiment)
        return str(self._client.create_run(where, run_name=name).info.run_id)

    def _asked(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._refusal as error:
            raise OSError(f"MLflow at {self.place} does not do its part: {error}") from error
