"""Options of commands: their parsers and their checks."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypedDict

from cyclopts import Group, Parameter, Token
from cyclopts.validators import Number
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from swath.cli.failure import UsageError
from swath.options import OnEnvError

INLINE, THREAD, PROCESS, RAY, NONE = "inline", "thread", "process", "ray", "none"

OPTIONS, EVALUATION, FILES = (Group(name, sort_key=key) for key, name in enumerate(("Options", "Evaluation", "Files")))


def parse_count(_type: Any, tokens: Sequence[Token]) -> int:
    """Parse `100000`, `100_000` or `1e5`."""
    value = float(tokens[0].value)
    if not value.is_integer():
        raise ValueError(f"{tokens[0].value} is not an integer")
    return int(value)


Count = Annotated[int, Parameter(group=OPTIONS, converter=parse_count, validator=Number(gte=1))]
FromZero = Annotated[int, Parameter(group=OPTIONS, converter=parse_count, validator=Number(gte=0))]
Text = Annotated[str, Parameter(group=OPTIONS, show_default=False)]
KeyValues = Annotated[dict[str, str], Parameter(group=OPTIONS, show_default=False)]
Backend = Annotated[Literal["inline", "thread", "process", "ray"], Parameter(group=OPTIONS, show_choices=False)]


class WorkersOptions(TypedDict, total=False):
    """Options of commands with collecting workers; options that the user leaves out are missing."""

    frames: Count
    envs: Count
    workers: Count
    backend: Backend
    batch: Count
    seed: FromZero
    device: Text
    threads: Count
    env_kwargs: KeyValues
    env_processes: Count
    on_env_error: Annotated[OnEnvError, Parameter(group=OPTIONS, show_choices=False)]


@dataclass(frozen=True)
class CollectionConfig:
    """The settings of a collection: env, amount, and workers.

    Attributes:
        env: name of the env.
        frames: total number of frames.
        envs: envs that a worker steps together.
        workers: number of workers.
        backend: place of the workers; empty: inline for one worker, else processes.
        batch: frames of a batch.
        seed: root of all seeds.
        device: device of the networks.
        threads: torch's threads in this process; other processes have one.
        env_kwargs: keywords of the env.
        env_processes: number of env processes, as of a collector.
        on_env_error: effect of an exception of the env, as of a collector.

    Raises:
        UsageError: several workers inline.
    """

    env: str
    frames: int = 100_000
    envs: int = 8
    workers: int = 1
    backend: str = ""
    batch: int = 2048
    seed: int = 0
    device: str = "cpu"
    threads: int = 1
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    env_processes: int | None = None
    on_env_error: OnEnvError = "raise"

    def __post_init__(self) -> None:
        backend = self.backend or (INLINE if self.workers == 1 else PROCESS)
        object.__setattr__(self, "backend", backend)
        if backend == INLINE and self.workers > 1:
            raise UsageError(f"--backend inline is one worker in this process; choose process for {self.workers}")

    @property
    def place(self) -> str:
        """Describe the workers: see `describe_workers`."""
        return describe_workers(self.backend, self.workers, self.envs)


FIXED_BY_RUN = ("env", "env_kwargs", "envs", "workers", "backend", "batch", "seed", "ppo")
"""Options that a resumed run cannot change."""

TENSORBOARD = "tensorboard"
MODULES = {TENSORBOARD: "tensorboard", "wandb": "wandb", "mlflow": "mlflow", "prometheus": "prometheus_client"}
"""The module that each log needs; the extras have the names of the logs."""

LOG = re.compile(r"csv|tensorboard|(wandb|mlflow)(:.+)?|prometheus(:(.+:)?\d+)?")


@dataclass(frozen=True)
class RunConfig(CollectionConfig):
    """The options of one run, kept with every checkpoint.

    Attributes:
        eval_every: frames from one evaluation to the next; 0 evaluates at the end only, `None` ten times in all, or
            less often where that would take too long.
        eval_episodes: episodes of an evaluation.
        eval_backend: place of the evaluations, which run during the training; `"none"` for no evaluations.
        video: whether to make a video of the final policy.
        log: further logs than `metrics.csv`, as on the command line; `None`: TensorBoard, if it is installed.
        ppo: settings of the learner that differ from the defaults for the env, by name.

    Raises:
        UsageError: several workers inline.
    """

    eval_every: int | None = None
    eval_episodes: int = 20
    eval_backend: str = THREAD
    video: bool = True
    log: str | None = None
    ppo: dict[str, Any] = field(default_factory=dict)

    def with_changes(self, changes: dict[str, Any]) -> RunConfig:
        """Return this configuration with the options that the user gave with `--resume`.

        Raises:
            UsageError: an option that the run fixes has another value.
        """
        for name in FIXED_BY_RUN:
            old = getattr(self, name)
            if (value := changes.get(name, old)) != old:
                raise UsageError(f"{spell(name)} {value} is {old} in the run that --resume names; leave it out")
        return replace(self, **changes)


def parse_logs(text: str | None) -> dict[str, str]:
    """Parse `--log`: return settings by name of the log; an empty text stands for no setting.

    Every run writes `metrics.csv`, so that `csv` adds none.

    Raises:
        UsageError: a name is unknown, or its setting is wrong.
    """
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    if not all(LOG.fullmatch(part) for part in parts):
        forms = "csv, tensorboard, wandb[:PROJECT], mlflow[:EXPERIMENT], prometheus[:PORT] or prometheus:ADDRESS:PORT"
        raise UsageError(f"--log {text} must be of {forms}, with commas between")
    split = (part.partition(":") for part in parts if part != "csv")
    return {name: setting for name, _, setting in split}


def parse_items(texts: Mapping[str, str]) -> dict[str, Any]:
    """Parse values as Python literals, or else as texts; names get underscores."""
    return {name.replace("-", "_"): _parse_value(text) for name, text in texts.items()}


def _parse_value(text: str) -> Any:
    try:
        return ast.literal_eval(text.capitalize() if text.lower() in {"true", "false", "none"} else text)
    except (ValueError, SyntaxError):
        return text


def spell(name: str) -> str:
    """Return the spelling of an option on the command line."""
    return "ENV" if name == "env" else "--" + name.replace("_", "-")


def describe_workers(backend: str, workers: int, envs: int | None) -> str:
    """Describe workers: `8 envs`, `2 process workers of 8 envs`, `1 Ray worker of 1 env`."""
    inside = "one batched env" if envs is None else f"{envs} env{'' if envs == 1 else 's'}"
    if backend == INLINE:
        return inside
    kind = "Ray" if backend == RAY else backend
    return f"{workers} {kind} worker{'' if workers == 1 else 's'} of {inside}"


def start_console(*, stderr: bool = False) -> Console:
    """Return the console of a command, without highlighting; in a terminal print at once that the command has begun."""
    console = Console(highlight=False, emoji=False, markup=False, stderr=stderr)
    if console.is_terminal:
        console.print("starting", style="dim")
    return console


def make_table(first: str, *others: str) -> Table:
    """Return a table with these columns; all but the first have numbers."""
    return Table(first, *(Column(name, justify="right") for name in others), box=SIMPLE_HEAD, pad_edge=False)
