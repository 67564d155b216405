"""What is asked of one evaluation, as a frozen value."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import index

from swath.evaluate.reading import Reading
from swath.evaluate.stopping import StopRule
from swath.options import count
from swath.rollout.policies.calling import ExplorationType

_STEP = ": the training step the evaluation belongs to"


@dataclass(frozen=True)
class EvalLimits:
    """What an evaluation may take.

    Attributes:
        max_steps: most env steps of an episode, ≥ 1; reaching it truncates the episode. `None`: no such limit.
        timeout_s: seconds for the whole evaluation, > 0 and finite.

    Raises:
        ValueError: a number out of range.
    """

    max_steps: int | None = None
    timeout_s: float = 3600.0

    def __post_init__(self) -> None:
        if self.max_steps is not None:
            count("max_steps", self.max_steps)
        require_deadline("timeout_s", self.timeout_s)


@dataclass(frozen=True)
class EvalRequest:
    """One evaluation: how many episodes, under which conditions, and what it is for.

    Attributes:
        stop: how many episodes.
        limits: what it may take.
        seed: root of the seeds of its episodes and of its noise; `None` seeds nothing.
        exploration_type: how the policy picks its actions.
        reading: which entries of the env count.
        step: the training step it belongs to; kept with the result.
        policy_version: version of the weights; kept with the result.

    Raises:
        TypeError: `seed` or `step` is no integer.
        ValueError: `step` has more than 64 bits.
    """

    stop: StopRule = field(default_factory=StopRule)
    limits: EvalLimits = field(default_factory=EvalLimits)
    seed: int | None = 0
    exploration_type: ExplorationType = ExplorationType.DETERMINISTIC
    reading: Reading = field(default_factory=Reading)
    step: int = 0
    policy_version: int = 0

    def __post_init__(self) -> None:
        if self.seed is not None:
            object.__setattr__(self, "seed", _integer("seed", self.seed, ", or None to seed nothing"))
        object.__setattr__(self, "step", step_of(self.step))


def require_deadline(name: str, value: object) -> None:
    """Check a deadline.

    Raises:
        ValueError: not a finite number of seconds > 0.
    """
    if isinstance(value, bool) or not (isinstance(value, int | float) and 0 < value < math.inf):
        raise ValueError(f"{name}={value!r} must be a finite number of seconds > 0")


def step_of(step: object) -> int:
    """A training step as an int of Python's.

    Raises:
        TypeError: no integer.
        ValueError: one of more than 64 bits, which no tensor holds.
    """
    if isinstance(step, bool):
        raise TypeError(f"step={step!r} must be an integer{_STEP}")
    number = _integer("step", step, _STEP)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"step={step!r} must fit in 64 bits{_STEP}")
    return number


def _integer(name: str, value: object, meaning: str) -> int:
    """The value as an int of Python's, also from numpy's and torch's."""
    try:
        return index(value)  # type: ignore[arg-type]  # that is what is found out
    except TypeError:
        raise TypeError(f"{name}={value!r} must be an integer{meaning}") from None
