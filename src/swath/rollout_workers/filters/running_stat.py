"""Mean and variance of a stream of values, and of the part of it that is new since the last sharing.

T. F. Chan, G. H. Golub and R. J. LeVeque, 1979, Updating formulae and a pairwise algorithm for computing sample
variances.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, TypeAlias

import numpy as np

from swath.rollout.spaces import Array

Moments: TypeAlias = tuple[int, Array, Array]
"""Of a set of values of one shape: how many, their mean, the sum of their squared differences from it, float64."""


def moments_of(values: Array) -> Moments:
    """Of one batch `[n, …]`; zeros if there are none."""
    n = len(values)
    if n == 0:
        return 0, np.zeros(values.shape[1:]), np.zeros(values.shape[1:])
    values = np.asarray(values, dtype=np.float64)
    mean = np.asarray(np.add.reduce(values, axis=0) / n)
    differences = values - mean
    differences *= differences
    return n, mean, np.asarray(np.add.reduce(differences, axis=0))


def _together(one: Moments, more: Moments) -> Moments:
    """Of the values of both; the arrays are fresh."""
    (n, mean, sum_sq_diff), (n_more, mean_more, sum_more) = one, more
    if n == 0 or n_more == 0:
        return deepcopy(one if n_more == 0 else more)
    share, apart = n_more / (n + n_more), mean_more - mean
    sums = sum_sq_diff + sum_more + apart * apart * (n * share)
    return n + n_more, np.asarray(mean + apart * share), np.asarray(sums)


class RunningStat:
    """Statistics of all values pushed; and apart from them the delta, those pushed since `reset_delta`.

    Attributes, all of which may be set, arrays are float64:
        num_pushes, num_pushes_delta: how many values.
        mean_array, mean_delta_array: their mean.
        sum_sq_diff_array, sum_sq_diff_delta_array: the sum of their squared differences from that mean.
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.num_pushes, self.mean_array, self.sum_sq_diff_array = moments_of(np.zeros((0, *shape)))
        self.reset_delta()

    @property
    def n(self) -> int:
        """How many values."""
        return self.num_pushes

    @property
    def mean(self) -> Array:
        """Their mean, float64."""
        return self.mean_array

    @property
    def var(self) -> Array:
        """Their unbiased variance, float32; 0 for fewer than two values."""
        return np.asarray(self.sum_sq_diff_array / max(self.num_pushes - 1, 1), dtype=np.float32)

    @property
    def std(self) -> Array:
        """The square root of the variance, float32."""
        return np.asarray(np.sqrt(self.var))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a value."""
        return self.mean_array.shape

    def push(self, x: Any) -> None:
        """Count one value.

        Raises:
            ValueError: it has another shape.
        """
        self.push_batch(np.asarray(x)[None])

    def push_batch(self, x: Any) -> None:
        """Count a batch of values `[n, …]`, as if they were pushed one by one.

        Raises:
            ValueError: the values have another shape.
        """
        values = np.asarray(x)
        if values.shape[1:] != self.shape or values.ndim == 0:
            raise ValueError(f"cannot count values of shape {values.shape[1:]} among those of shape {self.shape}")
        self.absorb(moments_of(values))

    def absorb(self, pushed: Moments) -> None:
        """Count values of which these are the moments."""
        self._count(pushed)
        delta = _together(self._delta, pushed)
        self.num_pushes_delta, self.mean_delta_array, self.sum_sq_diff_delta_array = delta

    def update(self, other: RunningStat) -> None:
        """Count what is new in the other one, its delta; it does not become part of the delta here.

        Raises:
            ValueError: it is about values of another shape.
        """
        if other.shape != self.shape:
            raise ValueError(f"cannot merge statistics of shape {other.shape} into those of shape {self.shape}")
        self._count(other._delta)

    def reset_delta(self) -> None:
        """Begin a new delta."""
        nothing = moments_of(np.zeros((0, *self.shape)))
        self.num_pushes_delta, self.mean_delta_array, self.sum_sq_diff_delta_array = nothing

    def copy(self) -> RunningStat:
        """With arrays of its own."""
        return deepcopy(self)

    def to_state(self) -> dict[str, Any]:
        """Copies of the attributes by name."""
        return deepcopy(vars(self))

    @staticmethod
    def from_state(state: dict[str, Any]) -> RunningStat:
        """The statistics that `to_state` gave."""
        made = RunningStat()
        vars(made).update(deepcopy(state))
        return made

    def __repr__(self) -> str:
        return f"<RunningStat n={self.n}, mean of means {np.mean(self.mean):.4g}, mean of stds {np.mean(self.std):.4g}>"

    @property
    def _delta(self) -> Moments:
        return self.num_pushes_delta, self.mean_delta_array, self.sum_sq_diff_delta_array

    def _count(self, more: Moments) -> None:
        all_of = self.num_pushes, self.mean_array, self.sum_sq_diff_array
        self.num_pushes, self.mean_array, self.sum_sq_diff_array = _together(all_of, more)
