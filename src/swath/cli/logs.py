"""Where a run's numbers go beside `metrics.csv`: `--log`."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from swath.cli.failure import UsageError, optional
from swath.extras import need
from swath.report import sinks
from swath.report.services import EXPERIMENT, LOCAL, PORT

if TYPE_CHECKING:
    from collections.abc import Callable

    from swath.cli.folder import RunFolder
    from swath.report.sinks import Sink

CSV, TENSORBOARD = "csv", "tensorboard"
MODULES = {TENSORBOARD: "tensorboard", "wandb": "wandb", "mlflow": "mlflow", "prometheus": "prometheus_client"}
"""What each needs; the extras have the names of the logs."""


def logs_named(text: str | None) -> dict[str, str]:
    """Names and settings, empty where there is none; `metrics.csv` is written in any case, and not among them.

    Raises:
        UsageError: an unknown name, or a setting that it does not take.
    """
    logs: dict[str, str] = {}
    for part in [] if text is None else text.split(","):
        name, colon, setting = part.strip().partition(":")
        if name not in (CSV, *MODULES):
            raise UsageError(f"--log {text}: {name!r} must be one of {', '.join((CSV, *MODULES))}")
        takes_none = name in (CSV, TENSORBOARD) or not setting
        if colon and (takes_none or (name == "prometheus" and not setting.rpartition(":")[2].isdecimal())):
            raise UsageError(
                f"--log {text}: use wandb:PROJECT, mlflow:EXPERIMENT, prometheus:PORT or prometheus:ADDRESS:PORT"
            )
        logs[name] = setting
    logs.pop(CSV, None)
    return logs


def require_extras(text: str | None) -> None:
    """Look whether what was asked for is installed, before anything is begun.

    Raises:
        ImportError: it is not; the message says how to install it.
    """
    for name in logs_named(text):
        need(MODULES[name], extra=name, why=f"for --log {name}")


def open_logs(text: str | None, folder: RunFolder, resume_at: int | None, say: Callable[[str], None]) -> Sink:
    """Open the metrics file and the logs.

    A run that cannot write `metrics.csv` ends. A log that fails is left out from then on. Without `--log` the numbers
    go to TensorBoard's events, unless that is missing. All of that is said.

    Raises:
        OSError: a file cannot be written, a port is taken, a service begins no run.
        ValueError: the metrics to go on with are damaged.
    """
    logs: dict[str, Sink] = {}
    with ExitStack() as opened:
        if text is None:
            with optional(say, "TensorBoard events"):
                logs[TENSORBOARD] = _opened(TENSORBOARD, "", folder, resume_at)
        for name, setting in logs_named(text).items():
            logs[name] = _opened(name, setting, folder, resume_at)
            opened.callback(logs[name].close)
        metrics = sinks.CsvSink(folder.metrics, resume_at)
        opened.pop_all()
    for name in logs_named(text):
        say(f"{name}: {getattr(logs[name], 'place', folder.events)}")

    def say_lost(name: str, error: Exception) -> None:
        said = " ".join(str(error).split()) or type(error).__name__
        say(f"{name} gets no more numbers, metrics.csv has them all: {said}")

    return sinks.SinkGroup([metrics, *(sinks.DetachedSink(log, partial(say_lost, name)) for name, log in logs.items())])


def _opened(name: str, setting: str, folder: RunFolder, resume_at: int | None) -> Sink:
    about = folder.path.name
    if name == TENSORBOARD:
        return sinks.TensorBoardSink(folder.events, resume_at)
    if name == "wandb":
        return sinks.WandbSink(folder.path, resume_at, project=setting or None, name=about)
    if name == "mlflow":
        return sinks.MlflowSink(folder.path, resume_at, experiment=setting or EXPERIMENT, name=about)
    address, _, port = setting.rpartition(":")
    return sinks.PrometheusSink(int(port or PORT), address or LOCAL)
