"""When an evaluation has enough episodes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swath.evaluation.request import Conditions

WIDE, NARROW, UNKNOWN = (0.0, 10.0), (4.9, 5.1), (math.nan, math.nan)


@pytest.mark.parametrize("interval", [WIDE, NARROW, UNKNOWN])
def test_a_fixed_number_of_episodes_is_one_round_whatever_the_interval(interval):
    rule = Conditions(num_trajectories=7)
    assert rule.verdict(7, interval) == "fixed"
    assert rule.most == 7


def test_a_narrow_interval_ends_the_evaluation_and_a_wide_one_plays_on():
    rule = Conditions(num_trajectories=5, until_ci_halfwidth=0.5)
    assert rule.verdict(5, NARROW) == "ci"
    assert rule.verdict(5, WIDE) is None


def test_an_unknown_interval_is_never_narrow_enough():
    rule = Conditions(num_trajectories=2, until_ci_halfwidth=1e9, max_trajectories=4)
    assert rule.verdict(2, UNKNOWN) is None
    assert rule.verdict(4, UNKNOWN) == "max"


def test_the_bound_ends_it_when_the_next_round_would_pass_it():
    rule = Conditions(num_trajectories=4, until_ci_halfwidth=0.1, max_trajectories=10)
    assert rule.verdict(4, WIDE) is None
    assert rule.verdict(8, WIDE) == "max"


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
        ({"num_trajectories": -3}, "num_trajectories=-3"),
        ({"num_trajectories": 2.5}, "num_trajectories=2.5"),
        ({"num_trajectories": True}, "num_trajectories=True"),
        ({"until_ci_halfwidth": 0.0}, "until_ci_halfwidth=0.0"),
        ({"until_ci_halfwidth": -1}, "until_ci_halfwidth=-1"),
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
