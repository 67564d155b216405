"""Kinds of options that several commands have."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from swath.cli.failure import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cyclopts import Token

COLLECTION = Group("Collection", sort_key=1)
TRAINING = Group("Training", sort_key=1)
EXAMINATION = Group("Examination", sort_key=1)
MEASUREMENT = Group("Measurement", sort_key=1)
EVALUATION = Group("Evaluation", sort_key=2)
FILES = Group("Files", sort_key=3)


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
    if not all(word.isdecimal() for word in words):
        raise UsageError(f"{tokens[0].keyword} {tokens[0].value} must be whole numbers with commas, such as 1,4,8")
    return tuple(map(int, words))


CollectionCount = Annotated[int | None, Parameter(group=COLLECTION, show_default=False, converter=read_count)]
TrainingCount = Annotated[int | None, Parameter(group=TRAINING, show_default=False, converter=read_count)]
ExaminationCount = Annotated[int | None, Parameter(group=EXAMINATION, show_default=False, converter=read_count)]
EvaluationCount = Annotated[int | None, Parameter(group=EVALUATION, show_default=False, converter=read_count)]
MeasurementCount = Annotated[int | None, Parameter(group=MEASUREMENT, show_default=False, converter=read_count)]
MeasurementCounts = Annotated[
    tuple[int, ...] | None,
    Parameter(group=MEASUREMENT, show_default=False, converter=read_counts, n_tokens=1, negative=""),
]
