"""Where a run's numbers go beside `metrics.csv`: `--log`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from swath.cli.failure import UsageError, told_if_missing, told_in_one_line
from swath.extras import need
from swath.report import sinks
from swath.report.mlflow_sink import EXPERIMENT
from swath.report.prometheus_sink import LOCAL, PORT

if TYPE_CHECKING:
    from collections.abc import Callable

    from swath.cli.folder import RunFolder
    from swath.report.sink import Sink

CSV, TENSORBOARD, WANDB, MLFLOW, PROMETHEUS = "csv", "tensorboard", "wandb", "mlflow", "prometheus"
WITH_SETTING = (WANDB, MLFLOW, PROMETHEUS)
MODULES = {TENSORBOARD: "tensorboard", WANDB: "wandb", MLFLOW: "mlflow", PROMETHEUS: "prometheus_client"}
"""What each needs; the extras have the names of the logs."""

MOST_PORT = 65535


def logs_named(text: str | None) -> dict[str, str]:
    """Names and settings, empty where there is none; `metrics.csv` is written in any case, and not among them.

    Raises:
        UsageError: an unknown name, one that stands twice, or a setting that it does not take.
    """
    logs: dict[str, str] = {}
    for part in [] if text is None else text.split(","):
        name, colon, setting = part.strip().partition(":")
        if name not in (CSV, *MODULES):
            raise UsageError(f"--log {text}: {name!r} must be one of {', '.join((CSV, *MODULES))}")
        if name in logs:
            raise UsageError(f"--log {text}: {name} stands there twice")
        if colon and (name not in WITH_SETTING or not setting or (name == PROMETHEUS and not _is_port(setting))):
            raise UsageError(
                f"--log {text}: use wandb:PROJECT, mlflow:EXPERIMENT, prometheus:PORT or prometheus:ADDRESS:PORT"
            )
        logs[name] = setting
    logs.pop(CSV, None)
    return logs


def require_extras(text: str | None) -> None:
    """Look whether what was asked for is installed, before anything is begun.

    Raises:
        UsageError: it is not; the message says how to install it.
    """
    with told_in_one_line():
        for name in logs_named(text):
            need(MODULES[name], extra=name, why=f"for --log {name}")


def opened_logs(
    text: str | None, folder: RunFolder, resume_at: int | None, say: Callable[[str], None]
) -> dict[str, Sink]:
    """Open them, by name; without a wish TensorBoard's events, unless its extra is missing, which is said.

    Raises:
        OSError: a port is taken, a file cannot be written, a service begins no run. None is left open.
    """
    logs: dict[str, Sink] = {}
    with ExitStack() as opened:
        if text is None:
            with told_if_missing(say, "TensorBoard events"):
                logs[TENSORBOARD] = _opened(TENSORBOARD, "", folder, resume_at, say)
        for name, setting in logs_named(text).items():
            logs[name] = _opened(name, setting, folder, resume_at, say)
            opened.callback(logs[name].close)
        opened.pop_all()
    return logs


def _opened(name: str, setting: str, folder: RunFolder, resume_at: int | None, say: Callable[[str], None]) -> Sink:
    if name == TENSORBOARD:
        return sinks.TensorBoardSink(folder.events, resume_at)
    about = folder.path.name
    sink: sinks.WandbSink | sinks.MlflowSink | sinks.PrometheusSink
    if name == WANDB:
        sink = sinks.WandbSink(folder.path, resume_at, project=setting or None, name=about)
    elif name == MLFLOW:
        sink = sinks.MlflowSink(folder.path, resume_at, experiment=setting or EXPERIMENT, name=about)
    else:
        addr, _, port = setting.rpartition(":")
        sink = sinks.PrometheusSink(int(port or PORT), addr or LOCAL)
    say(f"{name}: {sink.place}")
    return sink


def _is_port(setting: str) -> bool:
    """Whether it is a port, perhaps behind the address to listen on."""
    port = setting.rpartition(":")[2]
    return port.isdecimal() and int(port) <= MOST_PORT
