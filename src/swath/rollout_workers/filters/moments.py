"""Count, mean and sum of squared differences of a set of values, and those of two sets together.

T. F. Chan, G. H. Golub and R. J. LeVeque, 1979, Updating formulae and a pairwise algorithm for computing sample
variances.
"""

from __future__ import annotations

from typing import NamedTuple

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
            return (self if more.n == 0 else more).copy()
        n = self.n + more.n
        apart = more.mean - self.mean
        mean = self.mean + apart * (more.n / n)
        sum_sq_diff = self.sum_sq_diff + more.sum_sq_diff + apart * apart * (self.n * more.n / n)
        return Moments(n, np.asarray(mean), np.asarray(sum_sq_diff))

    def copy(self) -> Moments:
        """With arrays of its own."""
        return Moments(self.n, np.array(self.mean), np.array(self.sum_sq_diff))
