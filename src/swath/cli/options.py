"""Options of commands: how they are read, and what their values may be."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from cyclopts import Group, Parameter
from cyclopts.validators import Number
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from swath.cli.failure import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cyclopts import Token

INLINE, THREAD, PROCESS, RAY, NONE = "inline", "thread", "process", "ray", "none"

OPTIONS, EVALUATION, FILES = (Group(name, sort_key=at) for at, name in enumerate(("Options", "Evaluation", "Files")))


def read_count(_type: Any, tokens: Sequence[Token]) -> int:
    """Read `100000`, `100_000` and `1e5`."""
    value = float(tokens[0].value)
    if not value.is_integer():
        raise ValueError(f"{tokens[0].value} is no whole number")
    return int(value)


Count = Annotated[int, Parameter(group=OPTIONS, converter=read_count, validator=Number(gte=1))]
FromZero = Annotated[int, Parameter(group=OPTIONS, converter=read_count, validator=Number(gte=0))]
Text = Annotated[str, Parameter(group=OPTIONS, show_default=False)]
Words = Annotated[dict[str, str], Parameter(group=OPTIONS, show_default=False)]
Backend = Annotated[Literal["inline", "thread", "process", "ray"], Parameter(group=OPTIONS, show_choices=False)]


class WorkersOptions(TypedDict, total=False):
    """Options of commands that have workers collect; those that were not given are not there."""

    frames: Count
    envs: Count
    workers: Count
    backend: Backend
    batch: Count
    seed: FromZero
    device: Text
    threads: Count
    env_kwargs: Words


@dataclass(frozen=True)
class Collecting:
    """What envs are collected from, where, and how much.

    Attributes:
        env: as it is named.
        frames: how many.
        envs: envs that a worker steps together.
        workers: how many workers collect.
        backend: where they live; empty for inline if there is one, else in processes.
        batch: frames of a batch.
        seed: root of all seeds.
        device: where the networks are.
        threads: torch's threads in this process; other processes have one.
        env_kwargs: keywords for what makes the env.

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

    def __post_init__(self) -> None:
        backend = self.backend or (INLINE if self.workers == 1 else PROCESS)
        object.__setattr__(self, "backend", backend)
        if backend == INLINE and self.workers > 1:
            raise UsageError(f"--backend inline is one worker in this process; choose process for {self.workers}")

    @property
    def place(self) -> str:
        """Where the workers are, in words."""
        return place_words(self.backend, self.workers, self.envs)


OF_THE_RUN = ("env", "env_kwargs", "envs", "workers", "backend", "batch", "seed", "ppo")
"""What a resumed run cannot change."""

TENSORBOARD = "tensorboard"
MODULES = {TENSORBOARD: "tensorboard", "wandb": "wandb", "mlflow": "mlflow", "prometheus": "prometheus_client"}
"""What each needs; the extras have the names of the logs."""

LOG = re.compile(r"csv|tensorboard|(wandb|mlflow)(:.+)?|prometheus(:(.+:)?\d+)?")


@dataclass(frozen=True)
class RunConfig(Collecting):
    """The options of one run, kept with every checkpoint.

    Attributes:
        eval_every: frames from one evaluation to the next; 0 evaluates at the end only, `None` ten times in all, or
            less often where that would take too long.
        eval_episodes: episodes of an evaluation.
        eval_backend: where evaluations run beside the training; `"none"` for no evaluations.
        video: whether the final policy is filmed.
        log: where its numbers go beside `metrics.csv`, as on the command line; `None`: to TensorBoard, if it is there.
        ppo: settings of the learner that differ from those chosen for the env, by name.

    Raises:
        UsageError: several workers inline.
    """

    eval_every: int | None = None
    eval_episodes: int = 20
    eval_backend: str = THREAD
    video: bool = True
    log: str | None = None
    ppo: dict[str, Any] = field(default_factory=dict)

    def changed(self, given: dict[str, Any]) -> RunConfig:
        """This configuration with what the user gave beside `--resume`.

        Raises:
            UsageError: an option that belongs to the run has another value now.
        """
        for name in OF_THE_RUN:
            want = getattr(self, name)
            if (now := given.get(name, want)) != want:
                raise UsageError(f"{flag(name)} {now} is {want} in the run that --resume names; leave it out")
        return replace(self, **given)


def logs_named(text: str | None) -> dict[str, str]:
    """Names and settings, empty where there is none; `metrics.csv` is written in any case, and not among them.

    Raises:
        UsageError: an unknown name, or a setting that it does not take.
    """
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    if not all(LOG.fullmatch(part) for part in parts):
        forms = "csv, tensorboard, wandb[:PROJECT], mlflow[:EXPERIMENT], prometheus[:PORT] or prometheus:ADDRESS:PORT"
        raise UsageError(f"--log {text} must be of {forms}, with commas between")
    split = (part.partition(":") for part in parts if part != "csv")
    return {name: setting for name, _, setting in split}


def read_values(texts: Mapping[str, str]) -> dict[str, Any]:
    """Names with underscores, and values as Python reads them; what it cannot read is text."""
    return {name.replace("-", "_"): _value(text) for name, text in texts.items()}


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text.capitalize() if text.lower() in {"true", "false", "none"} else text)
    except (ValueError, SyntaxError):
        return text


def flag(name: str) -> str:
    """How an option is spelled on the command line."""
    return "ENV" if name == "env" else "--" + name.replace("_", "-")


def place_words(backend: str, workers: int, envs: int | None) -> str:
    """`8 envs`, `2 process workers of 8 envs`, `1 Ray worker of 1 env`."""
    inside = "a batch of its own" if envs is None else f"{envs} env{'s' * (envs > 1)}"
    if backend == INLINE:
        return inside
    return f"{workers} {'Ray' if backend == RAY else backend} worker{'s' * (workers > 1)} of {inside}"


def starting(*, stderr: bool = False) -> Console:
    """What a command prints on, names and numbers as they are; in a terminal it says at once that it has begun."""
    console = Console(highlight=False, emoji=False, markup=False, stderr=stderr)
    if console.is_terminal:
        console.print("starting", style="dim")
    return console


def table_of(first: str, *others: str) -> Table:
    """A table with these columns; all but the first are for numbers."""
    return Table(first, *(Column(name, justify="right") for name in others), box=SIMPLE_HEAD, pad_edge=False)
