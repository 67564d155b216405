"""When an evaluation has enough episodes."""

import math

import numpy as np
import pytest

from swath.evaluation.options import EvaluatorOptions

WIDE, NARROW = (0.0, 10.0), (4.9, 5.1)


def rule(**options):
    return EvaluatorOptions("CartPole-v1", len, **options)


def verdict(options, played, values):
    """After so many returns, half of them the one, half the other."""
    returns = np.resize(np.array(values), played)
    return rule(num_trajectories=8, **options).verdict(returns, 0)


@pytest.mark.parametrize(
    ("options", "played", "values", "expected"),
    [
        ({}, 8, WIDE, "fixed"),
        ({"until_ci_halfwidth": 0.5}, 8, NARROW, "ci"),
        ({"until_ci_halfwidth": 1e9, "max_trajectories": 16}, 16, (math.nan,), "max"),
        ({"until_ci_halfwidth": 0.1, "max_trajectories": 22}, 16, WIDE, "max"),
        ({"until_ci_halfwidth": 0.1}, 72, WIDE, None),
        ({"until_ci_halfwidth": 0.1}, 80, WIDE, "max"),
    ],
)
def test_rounds_end_with_a_narrow_interval_or_before_they_pass_the_bound(options, played, values, expected):
    assert verdict(options, played, values) == expected
