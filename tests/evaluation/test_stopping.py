"""When an evaluation has enough episodes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swath.evaluation.request import Conditions

WIDE, NARROW, UNKNOWN = (0.0, 10.0), (4.9, 5.1), (math.nan, math.nan)


@pytest.mark.parametrize(
    ("options", "played", "interval", "verdict"),
    [
        ({}, 7, WIDE, "fixed"),
        ({}, 7, UNKNOWN, "fixed"),
        ({"until_ci_halfwidth": 0.5}, 7, NARROW, "ci"),
        ({"until_ci_halfwidth": 0.5}, 7, WIDE, None),
        ({"until_ci_halfwidth": 1e9, "max_trajectories": 14}, 7, UNKNOWN, None),
        ({"until_ci_halfwidth": 1e9, "max_trajectories": 14}, 14, UNKNOWN, "max"),
        ({"until_ci_halfwidth": 0.1, "max_trajectories": 20}, 7, WIDE, None),
        ({"until_ci_halfwidth": 0.1, "max_trajectories": 20}, 14, WIDE, "max"),
    ],
)
def test_rounds_end_with_a_narrow_interval_or_before_they_pass_the_bound(options, played, interval, verdict):
    assert Conditions(num_trajectories=7, **options).verdict(played, interval) == verdict


@given(st.integers(2, 50), st.none() | st.integers(2, 500))
def test_rounds_never_pass_the_bound_and_always_end(num, bound):
    if bound is not None and bound < num:
        return
    rule = Conditions(num_trajectories=num, until_ci_halfwidth=0.1, max_trajectories=bound)
    played = num
    while rule.verdict(played, WIDE) is None:
        played += num
    assert played <= rule.most == (bound or 10 * num)
    assert played + num > rule.most


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_trajectories": 0}, "num_trajectories=0"),
        ({"num_trajectories": 2.5}, "num_trajectories=2.5"),
        ({"num_trajectories": True}, "num_trajectories=True"),
        ({"until_ci_halfwidth": 0.0}, "until_ci_halfwidth=0.0"),
        ({"until_ci_halfwidth": math.nan}, "until_ci_halfwidth=nan"),
        ({"until_ci_halfwidth": math.inf}, "until_ci_halfwidth=inf"),
        ({"until_ci_halfwidth": "narrow"}, "until_ci_halfwidth='narrow'"),
        ({"until_ci_halfwidth": 1.0, "num_trajectories": 1}, "2 or more, got 1"),
        ({"until_ci_halfwidth": 1.0, "max_trajectories": 9}, "max_trajectories=9 must be at least 10"),
        ({"max_trajectories": 20}, "needs until_ci_halfwidth"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(options, says):
    with pytest.raises(ValueError, match=says):
        Conditions(**options)
