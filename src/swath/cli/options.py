"""Options that several commands have: how they are read, and what their values may be."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
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
