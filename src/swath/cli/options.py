"""Kinds of options that several commands have, and what their values may be."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from swath.cli.failure import UsageError
from swath.cli.words import INLINE, NONE, PROCESS, RAY, THREAD, flag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cyclopts import Token

OPTIONS = Group("Options", sort_key=1)
EVALUATION = Group("Evaluation", sort_key=2)
FILES = Group("Files", sort_key=3)

BACKENDS = (INLINE, THREAD, PROCESS, RAY)
JUDGES = (THREAD, PROCESS, RAY, NONE)
"""Where evaluations run."""
LEAST = {"seed": 0, "eval_every": 0}
"""The least value of a number, where it is not 1."""
MOST_THREADS = 1024
"""Beyond it torch's threads take more memory than there is, and the process with it."""


def read_count(_type: Any, tokens: Sequence[Token]) -> int:
    """Read `100000`, `100_000` and `1e5`."""
    try:
        value = float(tokens[0].value)
    except ValueError:
        value = nan
    if not value.is_integer():
        raise UsageError(f"{tokens[0].keyword} {tokens[0].value} is no whole number, such as 20000 or 2e4")
    return int(value)


def read_counts(_type: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    """Read `8` and `1,4,8`."""
    words = [word.strip() for token in tokens for word in token.value.split(",")]
    if not all(word.isdecimal() and int(word) for word in words):
        raise UsageError(f"{tokens[0].keyword} {tokens[0].value} must be numbers from 1 with commas, such as 1,4,8")
    return tuple(map(int, words))


Count = Annotated[int, Parameter(group=OPTIONS, converter=read_count)]
Given = Annotated[int | None, Parameter(group=OPTIONS, show_default=False, converter=read_count)]
GivenEvaluation = Annotated[int | None, Parameter(group=EVALUATION, show_default=False, converter=read_count)]
Counts = Annotated[
    tuple[int, ...] | None,
    Parameter(group=OPTIONS, show_default=False, converter=read_counts, n_tokens=1, negative=""),
]
Text = Annotated[str, Parameter(group=OPTIONS)]
GivenText = Annotated[str | None, Parameter(group=OPTIONS, show_default=False)]


def require_in_range(**numbers: float | None) -> None:
    """Refuse numbers that are too small, and more threads than any machine has.

    Args:
        numbers: by the names of their options.

    Raises:
        UsageError: one is; the message names the option.
    """
    for name, value in numbers.items():
        if value is not None and value < LEAST.get(name, 1):
            raise UsageError(f"{flag(name)} {value} must be at least {LEAST.get(name, 1)}")
        if name == "threads" and value is not None and value > MOST_THREADS:
            raise UsageError(f"--threads {value} must be at most {MOST_THREADS}")


def backend_named(name: str) -> str:
    """The backend of this name; `direct` is what `Collector` calls inline.

    Raises:
        UsageError: there is none.
    """
    known = INLINE if name == "direct" else name
    if known not in BACKENDS:
        raise UsageError(f"--backend {name} must be one of {', '.join(BACKENDS)}")
    return known


def placed(workers: int | None, backend: str | None) -> str:
    """Where the workers live: as the number of workers has it unless it was given.

    Raises:
        UsageError: there is no such backend.
    """
    return backend_named(backend) if backend is not None else INLINE if workers in (None, 1) else PROCESS


def require_room(workers: int, backend: str) -> None:
    """Refuse several workers where there is one.

    Raises:
        UsageError: more than one worker inline.
    """
    if backend == INLINE and workers > 1:
        raise UsageError(f"--backend {INLINE} is one worker in this process; for --workers {workers} choose {PROCESS}")
