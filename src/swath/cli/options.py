"""Options of commands: how they are read, and what their values may be."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from math import nan
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from cyclopts import Group, Parameter
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from swath.cli.failure import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cyclopts import Token

INLINE, THREAD, PROCESS, RAY = BACKENDS = "inline", "thread", "process", "ray"

OPTIONS, EVALUATION, FILES = (Group(name, sort_key=at) for at, name in enumerate(("Options", "Evaluation", "Files")))


def read_count(_type: Any, tokens: Sequence[Token]) -> int:
    """Read `100000`, `100_000` and `1e5`."""
    try:
        value = float(tokens[0].value)
    except ValueError:
        value = nan
    if not value.is_integer():
        raise UsageError(f"{tokens[0].keyword} {tokens[0].value} is no whole number, such as 20000 or 2e4")
    return int(value)


Count = Annotated[int, Parameter(group=OPTIONS, converter=read_count)]
Text = Annotated[str, Parameter(group=OPTIONS, show_default=False)]
Words = Annotated[dict[str, str], Parameter(group=OPTIONS, show_default=False)]


class WorkersOptions(TypedDict, total=False):
    """Options of commands that have workers collect; those that were not given are not there."""

    frames: Count
    envs: Count
    workers: Count
    backend: Text
    batch: Count
    seed: Count
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
        UsageError: a number out of range, several workers inline, an unknown backend; the message says which.
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
        require_in_range(vars(self))
        backend = backend_named(self.backend or (INLINE if self.workers == 1 else PROCESS))
        object.__setattr__(self, "backend", backend)
        if backend == INLINE and self.workers > 1:
            way_out = f"for --workers {self.workers} choose {PROCESS}"
            raise UsageError(f"--backend {INLINE} is one worker in this process; {way_out}")

    @property
    def place(self) -> str:
        """Where the workers are, in words."""
        return place_words(self.workers, self.envs, self.backend)


NONE = "none"
JUDGES = (THREAD, PROCESS, RAY, NONE)
"""Where evaluations run."""

OF_THE_RUN = ("env", "env_kwargs", "envs", "workers", "backend", "batch", "seed", "ppo")
"""What a resumed run cannot change."""

CSV, TENSORBOARD = "csv", "tensorboard"
MODULES = {TENSORBOARD: "tensorboard", "wandb": "wandb", "mlflow": "mlflow", "prometheus": "prometheus_client"}
"""What each needs; the extras have the names of the logs."""


@dataclass(frozen=True)
class RunConfig(Collecting):
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
    eval_backend: str = THREAD
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
                raise UsageError(f"{flag(name)} {now} is {want} in the run that --resume names; leave it out")
        return changed


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


def require_in_range(values: Mapping[str, Any]) -> None:
    """Refuse numbers, by the names of their options, that are too small."""
    for name, value in values.items():
        least = 0 if name in ("seed", "eval_every") else 1
        if isinstance(value, int) and not isinstance(value, bool) and value < least:
            raise UsageError(f"{flag(name)} {value} must be at least {least}")


def backend_named(name: str) -> str:
    """The backend of this name; `direct` is what `Collector` calls inline.

    Raises:
        UsageError: there is none.
    """
    known = INLINE if name == "direct" else name
    if known not in BACKENDS:
        raise UsageError(f"--backend {name} must be one of {', '.join(BACKENDS)}")
    return known


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


def place_words(workers: int, envs: int | None, backend: str) -> str:
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
