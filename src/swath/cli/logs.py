"""Where a run's numbers go beside `metrics.csv`: `--log`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swath.cli.failure import UsageError
from swath.extras import need
from swath.report import sinks
from swath.report.services import EXPERIMENT, LOCAL, PORT

if TYPE_CHECKING:
    from swath.cli.folder import RunFolder
    from swath.report.sinks import Sink

CSV, TENSORBOARD, WANDB, MLFLOW, PROMETHEUS = "csv", "tensorboard", "wandb", "mlflow", "prometheus"
MODULES = {TENSORBOARD: "tensorboard", WANDB: "wandb", MLFLOW: "mlflow", PROMETHEUS: "prometheus_client"}
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
        if colon and (takes_none or (name == PROMETHEUS and not setting.rpartition(":")[2].isdecimal())):
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


def opened_log(name: str, setting: str, folder: RunFolder, resume_at: int | None) -> Sink:
    """Open one.

    Raises:
        OSError: a port is taken, a file cannot be written, a service begins no run.
    """
    about = folder.path.name
    if name == TENSORBOARD:
        return sinks.TensorBoardSink(folder.events, resume_at)
    if name == WANDB:
        return sinks.WandbSink(folder.path, resume_at, project=setting or None, name=about)
    if name == MLFLOW:
        return sinks.MlflowSink(folder.path, resume_at, experiment=setting or EXPERIMENT, name=about)
    addr, _, port = setting.rpartition(":")
    return sinks.PrometheusSink(int(port or PORT), addr or LOCAL)
