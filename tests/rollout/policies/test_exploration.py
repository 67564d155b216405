"""Exploration types by name."""

import pytest

from swath.rollout.policies.calling import ExplorationType, as_exploration_type


@pytest.mark.parametrize("name", ["RANDOM", "deterministic", "Mode", "mean", "median"])
def test_a_type_may_be_given_by_name_in_any_case_or_as_itself(name):
    member = ExplorationType[name.upper()]
    assert as_exploration_type(name) is member
    assert as_exploration_type(member) is member


@pytest.mark.parametrize("value", ["greedy", None, 3])
def test_another_value_is_an_error_that_lists_the_types(value):
    with pytest.raises(ValueError, match=rf"exploration_type={value!r} is none of .*RANDOM"):
        as_exploration_type(value)
