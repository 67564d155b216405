"""The interval of a mean: its levels against closed forms, its ends against their limits, its coverage."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swath import seeds
from swath.evaluation.statistics import Bootstrap, levels, mean_interval, student

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40).map(np.array)
EVEN = np.array([-3.0, -1.0, 0.0, 1.0, 3.0])
SKEWED = np.array([0.0, 1.0, 1.0, 2.0, 3.0, 3.0, 4.0, 17.0])
phi = NormalDist().cdf


@pytest.mark.parametrize(
    ("confidence", "freedom", "tabled"),
    [
        (0.95, 4, 2.776),
        (0.95, 9, 2.262),
        (0.95, 19, 2.093),
        (0.95, 49, 2.010),
        (0.95, 1e9, 1.960),
        (0.90, 9, 1.833),
        (0.99, 19, 2.861),
    ],
)
def test_students_quantiles_are_those_of_the_tables(confidence, freedom, tabled):
    assert student(confidence, freedom) == pytest.approx(tabled, rel=3e-3)


def test_the_levels_of_skewed_values_are_those_of_bca_with_the_acceleration_of_the_jackknife():
    n = len(SKEWED)
    without_one = np.array([np.delete(SKEWED, i).mean() for i in range(n)])
    away = without_one.mean() - without_one
    a = (away**3).sum() / (6 * (away**2).sum() ** 1.5)
    reach = student(0.9, n - 1) * math.sqrt(n / (n - 1))
    expected = [phi(a + (a + z) / (1 - a * (a + z))) for z in (-reach, reach)]
    assert a > 0.05
    assert levels(0.9, (1.0, SKEWED)) == pytest.approx(expected, rel=1e-9)


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


@given(st.floats(-1e9, 1e9), st.integers(2, 30))
@settings(max_examples=25, deadline=None)
def test_equal_values_have_an_interval_of_no_width(value, n):
    low, high = mean_interval(np.full(n, value))
    assert low == high == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    "values", [[], [1.0], [math.nan, 1.0], [1.0, math.inf], [-math.inf, math.inf, 0.0], [math.inf] * 3]
)
def test_there_is_no_interval_of_fewer_than_two_values_nor_of_any_that_is_not_finite(values):
    assert all(math.isnan(end) for end in mean_interval(np.array(values)))
    assert all(math.isnan(end) for end in Bootstrap().interval((1.0, EVEN), (-1.0, np.array(values))))


@pytest.mark.parametrize(
    ("draw", "mean", "n", "least", "most"),
    [
        pytest.param(lambda source, n: source.normal(5.0, 2.0, n), 5.0, 20, 0.93, 0.97, id="normal, 20"),
        pytest.param(lambda source, n: source.normal(5.0, 2.0, n), 5.0, 50, 0.92, 0.97, id="normal, 50"),
        pytest.param(lambda source, n: source.exponential(1.0, n), 1.0, 20, 0.90, 1.0, id="exponential, 20"),
        pytest.param(lambda source, n: source.choice([3.0] * 4 + [41.0], n), 10.6, 20, 0.90, 1.0, id="3 or 41, 20"),
    ],
)
def test_it_holds_the_true_mean_as_often_as_it_says(draw, mean, n, least, most):
    source, runs = np.random.default_rng(2024), 1000
    ends = np.array([mean_interval(draw(source, n), root) for root in range(runs)])
    assert least <= np.mean((ends[:, 0] <= mean) & (mean <= ends[:, 1])) <= most
