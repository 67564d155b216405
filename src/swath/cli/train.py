"""`swath train`: its options, what a run is made of, and where its numbers go (`--log`)."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from cyclopts import Parameter

from swath.cli import options
from swath.cli.failure import UsageError, optional
from swath.cli.naming import env_named, find_checkpoint
from swath.extras import need
from swath.report import sinks
from swath.report.services import EXPERIMENT, LOCAL, PORT

if TYPE_CHECKING:
    from collections.abc import Callable

    from swath.cli.naming import RunFolder
    from swath.report.sinks import Sink

NONE = "none"
JUDGES = (options.THREAD, options.PROCESS, options.RAY, NONE)
"""Where evaluations run."""

OF_THE_RUN = ("env", "env_kwargs", "envs", "workers", "backend", "batch", "seed", "ppo")
"""What a resumed run cannot change."""

CSV, TENSORBOARD = "csv", "tensorboard"
MODULES = {TENSORBOARD: "tensorboard", "wandb": "wandb", "mlflow": "mlflow", "prometheus": "prometheus_client"}
"""What each needs; the extras have the names of the logs."""


class TrainOptions(options.WorkersOptions, total=False):
    """Options of `swath train`; those that were not given are not there.

    Attributes:
        frames: Frames to collect in all, rounded up to whole batches. [default: 100000]
        envs: Envs that each worker steps together. [default: 8]
        workers: Workers that collect; every batch has a share of each. [default: 1]
        backend: Where workers live: inline (one, in this process), process, thread or ray.
            [default: inline for one worker, else process]
        batch: Frames collected between two updates. [default: 2048]
        seed: Root of all seeds. [default: 0]
        device: Where the networks are: cpu, cuda, cuda:1; workers on Ray act on the CPU. [default: cpu]
        threads: Threads for torch; small networks are fastest with one. [default: 1]
        env_kwargs: Keywords for what makes the env, such as --env-kwargs.map-name 8x8.
        ppo: Settings of PPO, the fields of swath.learn.PPOConfig, such as --ppo.learning-rate 1e-3.
            [default: chosen for the env]
        eval_every: Frames from one evaluation, and checkpoint, to the next; 0: at the end only. [default: a tenth of
            --frames, and more where evaluations would take over a quarter of the frames and of the time]
        eval_episodes: Episodes of an evaluation. [default: 20]
        eval_backend: Where evaluations run, beside the training: thread, process or ray; none: no evaluations.
            [default: thread]
        video: Film one episode of the final policy. [default: --video]
        log: Where the numbers go beside metrics.csv, with commas between: csv (nowhere else), tensorboard,
            wandb or wandb:PROJECT, mlflow or mlflow:EXPERIMENT, prometheus, prometheus:PORT or prometheus:ADDRESS:PORT.
            [default: tensorboard, if it is installed]
    """

    ppo: options.Words
    eval_every: Annotated[int, Parameter(group=options.EVALUATION, converter=options.read_count)]
    eval_episodes: Annotated[int, Parameter(group=options.EVALUATION, converter=options.read_count)]
    eval_backend: Annotated[str, Parameter(group=options.EVALUATION)]
    video: Annotated[bool, Parameter(group=options.FILES)]
    log: Annotated[str, Parameter(group=options.FILES)]


@dataclass(frozen=True)
class RunConfig(options.Collecting):
    """The options of one run, checked in one place and kept with every checkpoint.

    Attributes:
        eval_every: frames from one evaluation to the next; 0 evaluates at the end only, `None` ten times in all, or
            less often where that would take too long.
        eval_episodes: episodes of an evaluation.
        eval_backend: where evaluations run beside the training; `"none"` for no evaluations.
        video: whether the final policy is filmed.
        log: where its numbers go beside `metrics.csv`, as on the command line; `None`: to TensorBoard, if it is there.
        ppo: settings of the learner that differ from those chosen for the env, by name.

    Raises:
        UsageError: a number out of range, several workers inline, an unknown backend or log; the message says which.
    """

    eval_every: int | None = None
    eval_episodes: int = 20
    eval_backend: str = options.THREAD
    video: bool = True
    log: str | None = None
    ppo: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eval_backend not in JUDGES:
            raise UsageError(f"--eval-backend {self.eval_backend} must be one of {', '.join(JUDGES)}")
        logs_named(self.log)

    @property
    def eval_gap(self) -> int:
        """Frames from one evaluation to the next; 0: none but the last."""
        return max(self.frames // 10, 1) if self.eval_every is None else self.eval_every

    def changed(self, given: dict[str, Any]) -> RunConfig:
        """This configuration with what the user gave beside `--resume`.

        Raises:
            UsageError: an option that belongs to the run has another value now.
        """
        changed = replace(self, **given)
        for name in OF_THE_RUN:
            now, want = getattr(changed, name), getattr(self, name)
            if now != want:
                raise UsageError(f"{options.flag(name)} {now} is {want} in the run that --resume names; leave it out")
        return changed


def train(
    env: str | None = None,
    /,
    *,
    out: Annotated[Path | None, Parameter(group=options.FILES, show_default=False)] = None,
    resume: Annotated[Path | None, Parameter(group=options.FILES, show_default=False)] = None,
    **given: Unpack[TrainOptions],
) -> int:
    """Train PPO on an env and leave curve, film, metrics and checkpoints behind.

    Ctrl-C stops after the running batch and keeps everything; a second one ends at once. Checkpoints are written with
    each evaluation; a kill costs what was done since the last one whose result is there.

    Args:
        env: An id, such as CartPole-v1, or module:name, where name is a class or function that makes an env, or an id
            that importing the module registers; modules of the current folder are found, too.
        out: Folder for the results, new or empty. [default: runs/ENV-seedN, runs/ENV-seedN-2 and so on]
        resume: Go on with a run: its folder or a checkpoint. Weights, optimiser, schedule and counters go on where they
            were; simulators are not saved, episodes begin anew.
    """
    asked: dict[str, Any] = {**given, **({} if env is None else {"env": env})}
    for name in ("ppo", "env_kwargs"):
        if name in asked:
            asked[name] = options.read_values(asked[name])
    config = None
    if resume is not None:
        find_checkpoint(resume)
    elif env is None:
        raise UsageError("train: name an env, such as: swath train CartPole-v1")
    else:
        config = RunConfig(**asked)
        env_named(env, config.env_kwargs)
    console = options.starting()
    from swath.cli.run import run_training

    return run_training(console, config, resume, asked, out)


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
