"""What is asked of one evaluation: how many episodes, under which conditions, and what is wanted beside the numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import index
from typing import Any, Literal, TypeAlias

from swath.keys import keys_of
from swath.options import count
from swath.rollout.policies.calling import ExplorationType, as_exploration_type

Stopped: TypeAlias = Literal["fixed", "ci", "max"]

_ROUNDS_AT_MOST = 10
_STEP = ": the training step the evaluation belongs to"


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """How evaluations are played, as their user says it.

    Stopping where the interval happens to be narrow favours intervals that are too narrow: those hold the true mean
    somewhat less often than they say.

    Attributes:
        num_trajectories: episodes of a round, ≥ 1.
        until_ci_halfwidth: half the width of the interval of the mean return that ends the evaluation, > 0;
            None plays exactly one round.
        max_trajectories: most episodes over all rounds; None means 10 rounds.
        max_steps: most env steps of an episode, ≥ 1; reaching it truncates the episode. `None`: no such limit.
        timeout_s: seconds for the whole evaluation, > 0 and finite.
        seed: root of the seeds of its episodes and of its noise; `None` seeds nothing.
        exploration_type: how the policy picks its actions.
        reward_keys: entry whose mean is the reward of a step, or a list of them.
        done_keys: entry that ends an episode, or a list of them: when all are set.

    Raises:
        ValueError: a number out of range, a bound without `until_ci_halfwidth`, or no key.
        TypeError: `seed` is no integer, or a key is none.
    """

    num_trajectories: int = 10
    until_ci_halfwidth: float | None = None
    max_trajectories: int | None = None
    max_steps: int | None = None
    timeout_s: float = 3600.0
    seed: int | None = 0
    exploration_type: ExplorationType | str = ExplorationType.DETERMINISTIC
    reward_keys: Any = ("next", "reward")
    done_keys: Any = ("next", "done")

    def __post_init__(self) -> None:
        count("num_trajectories", self.num_trajectories)
        halfwidth, most = self.until_ci_halfwidth, self.max_trajectories
        if halfwidth is None and most is not None:
            raise ValueError(f"max_trajectories={most} needs until_ci_halfwidth, which is None")
        if halfwidth is not None:
            require_positive("until_ci_halfwidth", halfwidth, "number")
            if self.num_trajectories < 2:
                raise ValueError(f"until_ci_halfwidth={halfwidth} needs num_trajectories of 2 or more, got 1")
            if most is not None:
                count("max_trajectories", most, least=self.num_trajectories)
        if self.max_steps is not None:
            count("max_steps", self.max_steps)
        require_positive("timeout_s", self.timeout_s)
        if self.seed is not None:
            object.__setattr__(self, "seed", _integer("seed", self.seed, ", or None to seed nothing"))
        as_exploration_type(self.exploration_type)
        keys_of("reward_keys", self.reward_keys)
        keys_of("done_keys", self.done_keys)

    @property
    def most(self) -> int:
        """Most episodes an evaluation may play."""
        if self.until_ci_halfwidth is None:
            return self.num_trajectories
        return self.max_trajectories or _ROUNDS_AT_MOST * self.num_trajectories

    def verdict(self, played: int, interval: tuple[float, float]) -> Stopped | None:
        """Why to stop after `played` episodes with this interval of the mean return; None: play another round.

        An interval of NaN is never narrow enough.
        """
        if self.until_ci_halfwidth is None:
            return "fixed"
        if halfwidth(interval) <= self.until_ci_halfwidth:
            return "ci"
        return "max" if played + self.num_trajectories > self.most else None


@dataclass(frozen=True, kw_only=True)
class EvalRequest(Conditions):
    """One evaluation, as it travels to those who play it.

    Attributes:
        step: the training step it belongs to.
        policy_version: version of the weights.
        film: how many of the first episodes are filmed.
        film_bytes: frames held at most, by each worker.
        report_every: env steps between two reports of a worker, at most.
        record: whether all steps are kept.
        per_slot: a rollout: one episode of each slot, and what else the worker says; see `EvalWorker.rollout`.
        until_any_done: a round ends with the first episode that does; the others are cut there.
    """

    step: int = 0
    policy_version: int = 0
    film: int = 0
    film_bytes: int = 2**30
    report_every: int = 1000
    record: bool = False
    per_slot: bool = False
    until_any_done: bool = False


def halfwidth(interval: tuple[float, float]) -> float:
    """Half the width of (low, high)."""
    low, high = interval
    return (high - low) / 2.0


def require_positive(name: str, value: object, what: str = "number of seconds") -> None:
    """Raise `ValueError` unless the value is a finite number > 0."""
    if isinstance(value, bool) or not (isinstance(value, int | float) and 0 < value < math.inf):
        raise ValueError(f"{name}={value!r} must be a finite {what} > 0")


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
