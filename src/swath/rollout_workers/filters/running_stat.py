"""Mean and variance of a stream of values, and of the part of it that is new since the last sharing.

T. F. Chan, G. H. Golub and R. J. LeVeque, 1979, Updating formulae and a pairwise algorithm for computing sample
variances.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np

from swath.rollout.spaces import Array


class Moments(NamedTuple):
    """What is known of a set of values of one shape.

    Attributes:
        n: how many they are.
        mean: float64, in their shape; zeros if there are none.
        sum_sq_diff: sum of the squared differences from the mean, float64, in their shape.
    """

    n: int
    mean: Array
    sum_sq_diff: Array

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> Moments:
        """Of no values."""
        return cls(0, np.zeros(shape), np.zeros(shape))

    @classmethod
    def of(cls, values: Array) -> Moments:
        """Of one batch `[n, …]`."""
        n = len(values)
        if n == 0:
            return cls.none(values.shape[1:])
        values = np.asarray(values, dtype=np.float64)
        mean = np.asarray(np.add.reduce(values, axis=0) / n)
        differences = values - mean
        differences *= differences
        return cls(n, mean, np.asarray(np.add.reduce(differences, axis=0)))

    def with_more(self, more: Moments) -> Moments:
        """Of the values of both; the arrays are fresh."""
        if self.n == 0 or more.n == 0:
            one = self if more.n == 0 else more
            return Moments(one.n, one.mean.copy(), one.sum_sq_diff.copy())
        n = self.n + more.n
        apart = more.mean - self.mean
        mean = self.mean + apart * (more.n / n)
        sum_sq_diff = self.sum_sq_diff + more.sum_sq_diff + apart * apart * (self.n * more.n / n)
        return Moments(n, np.asarray(mean), np.asarray(sum_sq_diff))


class RunningStat:
    """Statistics of all values pushed; and apart from them the delta, those pushed since `reset_delta`.

    Attributes, all of which may be set, arrays are float64:
        num_pushes, num_pushes_delta: how many values.
        mean_array, mean_delta_array: their mean.
        sum_sq_diff_array, sum_sq_diff_delta_array: the sum of their squared differences from that mean.
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self._set(Moments.none(shape))
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
        if self.num_pushes <= 1:
            return np.zeros(self.shape, dtype=np.float32)
        return np.asarray(self.sum_sq_diff_array / (self.num_pushes - 1), dtype=np.float32)

    @property
    def std(self) -> Array:
        """The square root of the variance, float32."""
        return np.asarray(np.sqrt(self.var))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a value."""
        return self.mean_array.shape

    @property
    def moments(self) -> Moments:
        """Of all values."""
        return Moments(self.num_pushes, self.mean_array, self.sum_sq_diff_array)

    @property
    def delta(self) -> Moments:
        """Of the values pushed since `reset_delta`."""
        return Moments(self.num_pushes_delta, self.mean_delta_array, self.sum_sq_diff_delta_array)

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
        self.absorb(Moments.of(values))

    def absorb(self, pushed: Moments) -> None:
        """Count values of which these are the moments."""
        self._set(self.moments.with_more(pushed))
        self._set_delta(self.delta.with_more(pushed))

    def update(self, other: RunningStat) -> None:
        """Count what is new in the other one, its delta; it does not become part of the delta here.

        Raises:
            ValueError: it is about values of another shape.
        """
        if other.shape != self.shape:
            raise ValueError(f"cannot merge statistics of shape {other.shape} into those of shape {self.shape}")
        self._set(self.moments.with_more(other.delta))

    def reset_delta(self) -> None:
        """Begin a new delta."""
        self._set_delta(Moments.none(self.shape))

    def copy(self) -> RunningStat:
        """With arrays of its own."""
        return self.from_state(self.to_state())

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

    def _set(self, moments: Moments) -> None:
        self.num_pushes, self.mean_array, self.sum_sq_diff_array = moments

    def _set_delta(self, moments: Moments) -> None:
        self.num_pushes_delta, self.mean_delta_array, self.sum_sq_diff_delta_array = moments
