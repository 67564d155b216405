"""The numbers of an evaluation against closed forms; the interval of a mean against its limits, and its coverage."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swath import seeds
from swath.evaluation.options import EvaluatorOptions
from swath.evaluation.result import (
    Comparison,
    EvalResult,
    compare,
    episodes_of,
    interquartile_mean,
    interval,
    levels,
    mean_interval,
    summarise,
)

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


# Intervals

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40).map(np.array)
EVEN = np.array([-3.0, -1.0, 0.0, 1.0, 3.0])


@pytest.mark.parametrize(("root", "counts_as"), [(11, 11), (0, 0), (None, 0)])
def test_the_ends_are_the_quantiles_of_2000_resampled_means_under_the_seed_of_the_root(root, counts_as):
    values = np.random.default_rng(3).exponential(size=37)
    draws = np.random.Generator(np.random.PCG64(seeds.derive(counts_as, "bootstrap")))
    means = values[draws.integers(0, 37, size=(2000, 37))].mean(axis=1)
    assert mean_interval(values, root) == tuple(np.quantile(means, levels(0.95, (1.0, values))))


@given(VALUES)
@settings(max_examples=100, deadline=None)
def test_the_interval_holds_the_mean_and_stays_within_the_values(values):
    low, high = mean_interval(values)
    slack = 1e-12 * np.abs(values).max()
    assert values.min() - slack <= low <= values.mean() + slack
    assert values.mean() - slack <= high <= values.max() + slack


@pytest.mark.parametrize(
    "values", [[], [1.0], [math.nan, 1.0], [1.0, math.inf], [-math.inf, math.inf, 0.0], [math.inf] * 3]
)
def test_fewer_than_two_values_or_infinite_ones_have_no_interval(values):
    assert all(math.isnan(end) for end in mean_interval(np.array(values)))
    assert all(math.isnan(end) for end in interval((1.0, EVEN), (-1.0, np.array(values))))


@pytest.mark.parametrize(
    ("draw", "mean", "n", "lowest", "highest"),
    [
        pytest.param(lambda source, n: source.normal(5.0, 2.0, n), 5.0, 20, 0.93, 0.97, id="normal, 20"),
        pytest.param(lambda source, n: source.normal(5.0, 2.0, n), 5.0, 50, 0.92, 0.97, id="normal, 50"),
        pytest.param(lambda source, n: source.exponential(1.0, n), 1.0, 20, 0.90, 1.0, id="exponential, 20"),
        pytest.param(lambda source, n: source.choice([3.0] * 4 + [41.0], n), 10.6, 20, 0.90, 1.0, id="3 or 41, 20"),
    ],
)
def test_the_interval_contains_the_true_mean_at_its_level(draw, mean, n, lowest, highest):
    source, runs = np.random.default_rng(2024), 1000
    ends = np.array([mean_interval(draw(source, n), root) for root in range(runs)])
    assert lowest <= np.mean((ends[:, 0] <= mean) & (mean <= ends[:, 1])) <= highest


# Rounds


WIDE, NARROW = (0.0, 10.0), (4.9, 5.1)


def stop_reason(options, played, values):
    """Return the reason to stop after `played` episodes with alternating returns."""
    options = EvaluatorOptions("CartPole-v1", len, num_trajectories=8, **options)
    return options.stop_reason(np.resize(np.array(values), played), 0)


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
    assert stop_reason(options, played, values) == expected


def evaluated(returns, seeds=None, seeding="episode"):
    seeds = range(1, len(returns) + 1) if seeds is None else seeds
    rows = {i: (value, 1, True, False, seed) for i, (value, seed) in enumerate(zip(returns, seeds, strict=True))}
    return EvalResult({}, episodes_of(rows), seeding=seeding)


def test_pairs_are_found_by_seed_whatever_their_order():
    a = evaluated([1.0, 2.0, 3.0, 50.0], seeds=[10, 20, 30, 99])
    b = evaluated([7.0, 33.0, 2.0, 11.0], seeds=[77, 30, 20, 10])
    found = compare(a, b)
    assert (found.n, found.paired) == (3, True)
    assert found.difference == pytest.approx((10.0 + 0.0 + 30.0) / 3)
    assert found.probability_of_improvement == pytest.approx(2.5 / 3)


def test_pairing_cancels_the_luck_of_the_episode():
    luck = np.random.default_rng(0).normal(scale=100.0, size=30)
    a, b = evaluated(luck), evaluated(luck + 1.0)
    found, apart = compare(a, b), compare(a, b, paired=False)
    assert found.difference == pytest.approx(1.0)
    assert (found.ci_low, found.ci_high) == (pytest.approx(1.0), pytest.approx(1.0))
    assert found.probability_of_improvement == 1.0
    assert apart.difference == pytest.approx(1.0)
    assert apart.ci_low < -10.0 < 10.0 < apart.ci_high


def test_unpaired_the_probability_is_over_all_pairs_and_both_sides_may_differ_in_size():
    a, b = evaluated([0.0, 1.0, 2.0], seeding="none", seeds=[-1] * 3), evaluated([1.0, 3.0], seeding="layout")
    found = compare(a, b, paired=False)
    assert found.probability_of_improvement == pytest.approx((1.5 + 3.0) / 6)
    assert found.difference == 1.0
    assert (found.n, found.paired) == (5, False)


@pytest.mark.parametrize("paired", [True, False])
def test_nan_returns_give_nan(paired):
    found = compare(evaluated([1.0, math.nan, 2.0]), evaluated([1.0, 2.0, 3.0]), paired=paired)
    assert np.isnan([found.difference, found.ci_low, found.ci_high, found.probability_of_improvement]).all()


def test_results_read_back_compare_like_the_live_ones():
    a, b = evaluated([1.0, 2.0, 4.0]), evaluated([2.0, 2.0, 3.5])
    read = [EvalResult.from_json(result.to_json()) for result in (a, b)]
    assert compare(*read) == compare(a, b)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (evaluated([1.0, 2.0]), evaluated([1.0, 2.0], seeds=[2, 3]), "have 1 seeds in common"),
        (evaluated([1.0, 2.0], seeding="layout"), evaluated([1.0, 2.0]), "result_a.seeding is 'layout'"),
        (evaluated([1.0, 2.0]), evaluated([1.0, 2.0], seeding="none"), "result_b.seeding is 'none'"),
    ],
)
def test_results_that_cannot_be_paired_are_refused_with_the_way_out(a, b, message):
    with pytest.raises(ValueError, match=f"{message}.*paired=False"):
        compare(a, b)
    assert compare(a, b, paired=False).difference == 0.0


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ((0.5, 2.0), "B is better than A: the whole interval is above 0."),
        ((-2.0, -0.5), "A is better than B: the whole interval is below 0."),
        ((-1.0, 2.0), "Neither is shown to be better: the interval holds 0; 100 episodes narrow it."),
        ((0.0, 2.0), "Neither is shown to be better: the interval holds 0; 100 episodes narrow it."),
        ((0.0, 0.0), "A and B have the same return in every episode."),
        ((float("nan"), float("nan")), "No comparison: returns that are not finite have no interval."),
    ],
)
def test_the_verdict_describes_the_interval_in_a_sentence(interval, words):
    assert Comparison(1.0, *interval, 0.6, 20, paired=True).verdict("A", "B") == words


@pytest.mark.parametrize(
    ("n", "paired", "few"), [(4, True, True), (5, True, False), (9, False, True), (10, False, False)]
)
def test_few_episodes_give_no_verdict(n, paired, few):
    verdict = Comparison(1.0, 0.5, 2.0, 0.6, n, paired=paired).verdict("A", "B")
    assert verdict.startswith(f"No verdict: {n} episodes are too few; play 5" if few else "B is better than A")
