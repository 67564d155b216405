"""Sinks, which record the metrics of a run, and the plot of its learning curve.

Extras are imported when a sink is built.
"""

from __future__ import annotations

import csv
import io
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from math import isfinite, nan
from pathlib import Path
from queue import Full, Queue
from typing import Any, Protocol, TextIO

from swath.extras import import_extra
from swath.report.atomic import replace_atomically

FRAMES, EXPERIMENT = "frames", "swath"
MAX_METRICS = 1000
"""Limit of metrics in one request to MLflow."""

PORT, LOCAL = 9464, "127.0.0.1"
NOT_FOR_MLFLOW, NOT_FOR_PROMETHEUS = re.compile(r"[^\w\-. :/]", re.ASCII), re.compile(r"[^a-zA-Z0-9_]+")
WORKER_METRIC = re.compile(r"worker_(\d+)/(.+)")

MAX_WAITING = 10_000
"""Limit of rows that wait for a slow detached sink."""

TRAINING_COLOUR, EVALUATION_COLOUR, INK, GRID = "#9aa5b1", "#0b6e4f", "#333b44", "#e3e7eb"
Row = dict[str, str]
_STYLE: dict[str, Any] = {"restval": "", "lineterminator": "\n"}


class Sink(Protocol):
    """A destination for the metrics of a run, which come with growing frame counts."""

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Record metrics after `frames` collected frames."""

    def close(self) -> None:
        """Write buffered rows and release resources; closing twice is fine."""


class SinkGroup:
    """A sink that passes metrics on to others, in order."""

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self._sinks = tuple(sinks)

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics in every sink."""
        for sink in self._sinks:
            sink.log(frames, metrics)

    def close(self) -> None:
        """Close every sink, also when one of them raises."""
        with ExitStack() as stack:
            for sink in self._sinks:
                stack.callback(sink.close)


def numbers_of(facts: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of `stats()`, for a sink. Booleans become 1 and 0, strings are left out."""
    return {name: value + 0 for name, value in facts.items() if isinstance(value, int | float)}


class CsvSink:
    """A CSV file with one row per call, consistent at every moment.

    ```
    log(frames, metrics) ──known columns──▶ append one row, flush
                         ──new column─────▶ rewrite the file with the wider header (temporary file, rename), append
    resume at frame n    ──────────────────▶ keep the rows up to n, drop later ones and a torn last line
    ```

    The first column is the frame count; cells without a measurement are empty.

    Args:
        path: the file; its folder is created if it is missing.
        resume_at: `None` to start a new file; a frame count to continue an existing file, without rows beyond this
            frame, which a resumed run writes again.

    Raises:
        FileExistsError: `resume_at` is `None` and the file exists.
    """

    def __init__(self, path: str | Path, resume_at: int | None = None) -> None:
        self._path = Path(path)
        if resume_at is None and self._path.exists():
            raise FileExistsError(f"{self._path} holds the metrics of another run; resume it or choose a new file")
        columns, rows = read_rows(self._path) if self._path.exists() else ((FRAMES,), [])
        self._rewrite(columns, [row for row in rows if resume_at is None or int(row[FRAMES]) <= resume_at])
        self._file = self._open()

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Append one row and flush it.

        Raises:
            OSError: the disk does not accept it; later rows can be written when there is space again.
        """
        new = tuple(name for name in metrics if name not in self._columns)
        if new:
            self._file.close()
            try:
                self._rewrite((*self._columns, *new), read_rows(self._path)[1])
            finally:
                self._file = self._open()
        csv.DictWriter(self._file, self._columns, **_STYLE).writerow({FRAMES: frames, **metrics})
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _rewrite(self, columns: tuple[str, ...], rows: Iterable[Row]) -> None:
        with replace_atomically(self._path) as draft, draft.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns, **_STYLE)
            writer.writeheader()
            writer.writerows(rows)
        self._columns = columns

    def _open(self) -> TextIO:
        return self._path.open("a", encoding="utf-8", newline="")


def read_rows(path: str | Path) -> tuple[tuple[str, ...], list[Row]]:
    """Return the columns and rows of a metrics file, without an incomplete last line.

    Raises:
        ValueError: the file does not begin with the column `frames`.
    """
    text = Path(path).read_text(encoding="utf-8")
    table = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))
    if not table or table[0][:1] != [FRAMES]:
        raise ValueError(f"{path} is no metrics file of a run: its first column must be {FRAMES!r}")
    return tuple(table[0]), [dict(zip(table[0], cells, strict=True)) for cells in table[1:]]


def draw_curve(path: str | Path, metrics: str | Path, training: str, evaluation: str, title: str) -> None:
    """Plot the returns of a run over its frames as a PNG file.

    Args:
        path: the PNG file.
        metrics: the file of a `CsvSink`.
        training: column of the training return.
        evaluation: column of the evaluation's mean; columns `…_ci_low` and `…_ci_high` have its interval.
        title: title of the plot.

    Raises:
        ImportError: matplotlib is not installed; the message names the extra.
    """
    import_extra("matplotlib", extra="plot", purpose="to draw the learning curve")
    from matplotlib.figure import Figure  # noqa: PLC0415  an extra, and slow to import

    names = [FRAMES, training, evaluation, f"{evaluation}_ci_low", f"{evaluation}_ci_high"]
    cells = [[float(row.get(name) or nan) for name in names] for row in read_rows(metrics)[1]]
    training_rows, evaluation_rows = ([row for row in cells if isfinite(row[column])] for column in (1, 2))
    figure = Figure(figsize=(8.0, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    if training_rows:
        frames, returns, *_ = map(list, zip(*training_rows, strict=True))
        axes.plot(frames, returns, color=TRAINING_COLOUR, linewidth=1.4, label="training, last 100 episodes")
    if evaluation_rows:
        frames, _, means, low, high = map(list, zip(*evaluation_rows, strict=True))
        axes.plot(frames, means, "o-", color=EVALUATION_COLOUR, linewidth=2, markersize=4.5, label="evaluation")
        axes.fill_between(frames, low, high, color=EVALUATION_COLOUR, alpha=0.18, linewidth=0, label="95 % interval")
        axes.vlines(
            frames, low, high, color=EVALUATION_COLOUR, alpha=0.35, linewidth=1
        )  # visible for a single evaluation
    axes.set_title(title, loc="left", color=INK, fontsize=12, weight="bold", pad=12)
    axes.set(xlabel="frames", ylabel="return per episode")
    axes.grid(color=GRID, linewidth=0.8)
    if training_rows or evaluation_rows:
        axes.legend(frameon=False, labelcolor=INK, loc="best")
    with replace_atomically(path) as draft:
        figure.savefig(draft, format="png")


class TensorBoardSink:
    """A sink to TensorBoard's event files: one tag per metric, with the frame count as the step.

    Args:
        folder: folder of the event files; `tensorboard --logdir` takes it or a parent.
        resume_at: frame count at which a run is resumed; TensorBoard hides later events of older files.

    Raises:
        ImportError: TensorBoard is not installed; the message names the extra.
    """

    def __init__(self, folder: str | Path, resume_at: int | None = None) -> None:
        import_extra("tensorboard", extra="tensorboard", purpose="to write TensorBoard events")
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  an extra, and slow to import

        self._writer = SummaryWriter(str(folder), purge_step=None if resume_at is None else resume_at + 1)

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Add one scalar per metric; they reach the disk within two minutes, or at `close()`."""
        for tag, value in metrics.items():
            self._writer.add_scalar(tag, value, frames)

    def close(self) -> None:
        """Write buffered events and close the file."""
        self._writer.close()


class DetachedSink:
    """A sink that feeds another sink from a thread. An error there ends that sink alone.

    ```
     log ──row──▶ queue ──▶ a thread ──log──▶ the sink
      ▲                        └─ raises, hangs, falls behind: reported once, and it gets no more rows
      └── returns at once
    ```

    For sinks to services, which may fail while their clients retry for minutes, not for the run's own record.

    Args:
        sink: the other sink, to be used by the thread alone.
        on_error: called once with the error, in any thread.
        goodbye_s: seconds that `close` waits for pending rows.
    """

    def __init__(self, sink: Sink, on_error: Callable[[Exception], None], *, goodbye_s: float = 60.0) -> None:
        self._sink, self._on_error, self._goodbye_s = sink, on_error, goodbye_s
        self._rows: Queue[tuple[int, dict[str, float]] | None] = Queue(MAX_WAITING)
        self._over = False
        self._thread = threading.Thread(target=self._feed, name="swath-sink", daemon=True)
        self._thread.start()

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Pass the row to the thread, unless there was an error."""
        self._put((frames, dict(metrics)))

    def close(self) -> None:
        """Wait up to `goodbye_s` seconds until all rows are written and the sink is closed; twice is fine."""
        self._put(None)
        self._thread.join(0.0 if self._over else self._goodbye_s)
        if self._thread.is_alive():
            self._end(TimeoutError(f"it is not done after {self._goodbye_s:g} s; pending rows may be lost"))
        self._over = True

    def _put(self, row: tuple[int, dict[str, float]] | None) -> None:
        try:
            if not self._over:
                self._rows.put_nowait(row)
        except Full:
            self._end(TimeoutError(f"it does not keep up: {self._rows.maxsize:,} rows wait for it"))

    def _end(self, error: Exception) -> None:
        if not self._over:
            self._over = True
            self._on_error(error)

    def _feed(self) -> None:
        for step in (self._drain, self._sink.close):
            try:
                step()
            except Exception as error:  # noqa: BLE001  clients of services fail in many ways
                self._end(error)

    def _drain(self) -> None:
        while not self._over and (row := self._rows.get()) is not None:
            self._sink.log(*row)


# Sinks for services


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
        wandb = import_extra("wandb", extra="wandb", purpose="to write to Weights & Biases")
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
        mlflow = import_extra("mlflow", extra="mlflow", purpose="to write to MLflow")
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
        self._client = import_extra("prometheus_client", extra="prometheus", purpose="to serve metrics to Prometheus")
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
