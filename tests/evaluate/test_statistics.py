"""The numbers of an evaluation against closed forms."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swath.evaluate.statistics import interquartile_mean, sample_std, summarise

RETURNS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40).map(np.array)
OF_THE_RETURNS = ["reward", "reward_std", "reward_min", "reward_max", "reward_median", "reward_iqm"]
OF_THE_INTERVAL = ["reward_ci_low", "reward_ci_high"]


def summary(values, lengths=None, root=0):
    returns = np.asarray(values, dtype=np.float64)
    steps = np.ones(len(returns), dtype=np.int64) if lengths is None else np.asarray(lengths, dtype=np.int64)
    return summarise(returns, steps, root)


def test_the_names_are_those_of_the_contract_and_the_values_plain_python():
    numbers = summary([1.0, 2.0])
    assert list(numbers) == [*OF_THE_RETURNS, *OF_THE_INTERVAL, "num_episodes", "frames", "episode_length"]
    counts = {"num_episodes", "frames"}
    assert {name: type(value) for name, value in numbers.items()} == {
        name: int if name in counts else float for name in numbers
    }


def test_the_numbers_of_one_to_five_are_their_closed_forms():
    numbers = summary([5, 1, 3, 2, 4], lengths=[10, 20, 30, 40, 1])
    assert numbers["reward"] == 3.0
    assert numbers["reward_std"] == pytest.approx(math.sqrt(2.5), rel=1e-15)
    assert (numbers["reward_min"], numbers["reward_max"], numbers["reward_median"]) == (1.0, 5.0, 3.0)
    assert numbers["reward_iqm"] == 3.0
    assert (numbers["num_episodes"], numbers["frames"], numbers["episode_length"]) == (5, 101, 20.2)


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two():
    assert summary([100, 1, 3, 2])["reward_median"] == 2.5


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


def test_infinite_returns_pass_through_without_warnings():
    numbers = summary([1.0, math.inf, 2.0, -math.inf])
    assert (numbers["reward_min"], numbers["reward_max"]) == (-math.inf, math.inf)
    assert math.isnan(numbers["reward"])
    assert numbers["reward_iqm"] == 1.5
    assert all(math.isnan(numbers[name]) for name in OF_THE_INTERVAL)


def test_no_episode_at_all_is_an_error_and_so_are_vectors_that_differ_in_length():
    with pytest.raises(ValueError, match="0 returns"):
        summary([])
    with pytest.raises(ValueError, match="2 returns and 1 lengths"):
        summary([1, 2], lengths=[1])


def test_no_root_seed_resamples_like_root_zero_and_another_root_differs():
    values = np.arange(9.0)
    assert summary(values, root=None) == summary(values, root=0)
    assert summary(values, root=1)["reward_ci_low"] != summary(values, root=0)["reward_ci_low"]


@given(RETURNS, st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_the_order_of_the_episodes_does_not_matter_to_the_statistics(values, shuffler):
    order = list(range(len(values)))
    shuffler.shuffle(order)
    here, there = summary(values), summary(values[order])
    for name in OF_THE_RETURNS:
        assert there[name] == pytest.approx(here[name], rel=1e-9, abs=1e-6)


@given(RETURNS)
@settings(max_examples=50, deadline=None)
def test_the_centres_lie_between_the_extremes_and_the_interval_too(values):
    numbers = summary(values)
    slack = 1e-9 * (1 + np.abs(values).max())
    for name in ["reward", "reward_median", "reward_iqm", *(OF_THE_INTERVAL if len(values) > 1 else [])]:
        assert numbers["reward_min"] - slack <= numbers[name] <= numbers["reward_max"] + slack
    assert not numbers["reward_ci_low"] > numbers["reward_ci_high"]


@given(RETURNS, st.integers(-1000, 1000), st.sampled_from([0.25, 1.0, 8.0]))
@settings(max_examples=50, deadline=None)
def test_shifting_and_scaling_the_returns_shifts_and_scales_the_numbers(values, shift, scale):
    before, after = summary(values), summary(values * scale + shift)
    slack = 1e-9 * (1 + scale * np.abs(values).max() + abs(shift))
    assert after["reward_std"] == pytest.approx(before["reward_std"] * scale, abs=slack)
    for name in [name for name in OF_THE_RETURNS + OF_THE_INTERVAL if name != "reward_std"]:
        assert after[name] == pytest.approx(before[name] * scale + shift, abs=slack, nan_ok=True)


@given(st.floats(-1e9, 1e9), st.integers(2, 30))
@settings(max_examples=25, deadline=None)
def test_equal_returns_have_no_spread(value, n):
    assert sample_std(np.full(n, value)) == pytest.approx(0.0, abs=1e-6 * (1 + abs(value)))
