"""`metrics_fn`: what users compute from the trajectories of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from swath.collect.shaping import drop_private, noted
from swath.evaluate.numbers import NAMES
from swath.evaluate.parts import Footage
from swath.evaluate.recording import joined
from swath.evaluators.collector_settings import Steps


@dataclass(frozen=True)
class Metrics:
    """Calls `metrics_fn`; what it raises is the outcome of the evaluation.

    Attributes:
        measure: `metrics_fn`; `None` measures nothing.
        steps: what it gets.

    Raises:
        TypeError: it cannot be called.
    """

    measure: Callable[[Any], Any] | None
    steps: Steps

    def __post_init__(self) -> None:
        if self.measure is not None and not callable(self.measure):
            raise TypeError(f"metrics_fn is of type {type(self.measure).__name__}; it must be callable, or None")

    def __call__(self, footage: Sequence[Footage]) -> dict[str, Any]:
        """Its values by name.

        Raises:
            TypeError: not a mapping of names to numbers.
            ValueError: a name that results have already.
            Exception: what it raised, with a note.
        """
        if self.measure is None:
            return {}
        batch = self._batch(footage)
        with noted("metrics_fn"):
            measured = self.measure(batch)
        if not isinstance(measured, Mapping):
            raise TypeError(
                f"metrics_fn returned {type(measured).__name__}; it must return a dict of names and numbers"
            )
        for name, value in measured.items():
            _require_new(name)
            _require_number(name, value)
        return dict(measured)

    def _batch(self, footage: Sequence[Footage]) -> Any:
        steps = self.steps
        batch: Any = joined((each.steps for each in footage if each.steps is not None), steps.traj_format)
        batch = batch.to(steps.storing_device)
        if steps.postproc is not None:
            with noted("postproc"):
                batch = steps.postproc(batch)
            if batch is None:
                raise TypeError("postproc returned None; it must return the batch for metrics_fn")
        drop_private(batch)
        return batch


def _require_new(name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"metrics_fn gave the name {name!r}; names are strings")
    if name in NAMES:
        raise ValueError(f"metrics_fn gave {name!r}, which results have already; give it another name")


def _require_number(name: str, value: Any) -> None:
    if not isinstance(value, float | int | torch.Tensor):
        raise TypeError(
            f"metrics_fn gave {name}={value!r}, {type(value).__name__}; give a float, an int, a bool or a tensor"
        )
