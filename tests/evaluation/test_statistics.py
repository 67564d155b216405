"""The numbers of an evaluation against closed forms."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swath.evaluation.statistics import interquartile_mean, summarise

RETURNS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40).map(np.array)
OF_THE_RETURNS = ["reward", "reward_std", "reward_min", "reward_max", "reward_median", "reward_iqm"]
OF_THE_INTERVAL = ["reward_ci_low", "reward_ci_high"]


def summary(values, lengths=None, root=0):
    returns = np.asarray(values, dtype=np.float64)
    steps = np.ones(len(returns), dtype=np.int64) if lengths is None else np.asarray(lengths, dtype=np.int64)
    return summarise(returns, steps, root)


def test_the_numbers_of_one_to_five_are_their_closed_forms():
    numbers = summary([5, 1, 3, 2, 4], lengths=[10, 20, 30, 40, 1])
    assert numbers["reward"] == 3.0
    assert numbers["reward_std"] == pytest.approx(math.sqrt(2.5), rel=1e-15)
    assert (numbers["reward_min"], numbers["reward_max"], numbers["reward_median"]) == (1.0, 5.0, 3.0)
    assert numbers["reward_iqm"] == 3.0
    assert (numbers["num_episodes"], numbers["frames"], numbers["episode_length"]) == (5, 101, 20.2)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7], 7.0),
        ([1, 2, 30], 11.0),  # floor(3/4) = 0: nothing is cut
        ([0, 4, 6, 100], 5.0),
        ([0, 1, 2, 3, 100], 2.0),  # one of five on each side
        ([-100, -50, 1, 2, 3, 4, 50, 100], 2.5),
        ([5, 5, 5, 5, 5, 9], 5.0),  # ties are cut one by one
    ],
)
def test_the_interquartile_mean_cuts_a_quarter_rounded_down_on_each_side(values, expected):
    assert interquartile_mean(np.array(values[::-1], dtype=np.float64)) == expected


def test_a_single_episode_has_no_spread_and_no_interval():
    numbers = summary([3.5])
    assert numbers["reward"] == numbers["reward_median"] == numbers["reward_iqm"] == 3.5
    assert numbers["reward_std"] == 0.0
    assert all(math.isnan(numbers[name]) for name in OF_THE_INTERVAL)


@pytest.mark.parametrize("values", [[math.nan], [1, math.nan], [math.nan, 1, 2, 3, 4, 5, 6, 7, 8]])
def test_a_nan_reward_makes_every_statistic_of_the_returns_nan(values):
    numbers = summary(values)
    assert all(math.isnan(numbers[name]) for name in OF_THE_RETURNS + OF_THE_INTERVAL)
    assert numbers["num_episodes"] == len(values)


def test_no_root_seed_resamples_like_root_zero_and_another_root_differs():
    values = np.arange(9.0)
    assert summary(values, root=None) == summary(values, root=0)
    assert summary(values, root=1)["reward_ci_low"] != summary(values, root=0)["reward_ci_low"]


@given(RETURNS)
@settings(max_examples=50, deadline=None)
def test_the_centres_lie_between_the_extremes_and_the_interval_too(values):
    numbers = summary(values)
    slack = 1e-9 * (1 + np.abs(values).max())
    for name in ["reward", "reward_median", "reward_iqm", *(OF_THE_INTERVAL if len(values) > 1 else [])]:
        assert numbers["reward_min"] - slack <= numbers[name] <= numbers["reward_max"] + slack
    assert not numbers["reward_ci_low"] > numbers["reward_ci_high"]
