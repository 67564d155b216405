"""What a service of evaluations is told, and what comes of each: frozen values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from swath.evaluate.company import Performed
from swath.evaluate.parts import Wishes
from swath.evaluate.request import EvalRequest
from swath.evaluate.result import EvalResult
from swath.weights.snapshot import Snapshot


@dataclass(frozen=True)
class Brief:
    """What differs from one evaluation to the next.

    Attributes:
        models: weights by model id, the service's own.
        weighted: whether they count as a new set.
    """

    models: Mapping[str, Snapshot] = field(default_factory=dict)
    weighted: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        return sum(snapshot.nbytes for snapshot in self.models.values())

    def in_place_of(self, other: Brief) -> Brief:
        """This one, with what the other was to bring to models that this one does not name."""
        return replace(self, models={**other.models, **self.models})

    def without(self, later: Brief) -> Brief:
        """This one, but for models to which another brings newer weights that are not replaced."""
        return replace(self, models={name: model for name, model in self.models.items() if name not in later.models})


@dataclass(frozen=True)
class Ending:
    """What came of an evaluation: a result, or an error."""

    result: EvalResult | None = None
    error: BaseException | None = None

    def value(self) -> EvalResult:
        """The result.

        Raises:
            BaseException: the error.
        """
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


@dataclass(frozen=True)
class Plan:
    """What is the same for all evaluations of a service.

    Attributes:
        request: the conditions; step and version are filled in.
        wishes: what is wanted beside the numbers.
        finish: makes the result of what was performed; what it raises is the outcome.
        show: is shown each result before it can be read, and how to get the weights it was made with, by model id.
    """

    request: EvalRequest
    wishes: Wishes
    finish: Callable[[Performed, EvalRequest], EvalResult]
    show: Callable[[EvalResult, Callable[[], Mapping[str, Mapping[str, Any]]]], None]
