"""Which of two policies is better.

What this folder promises: `Evaluator` plays exactly the episodes asked for, each counted once, with one set of weights,
and gives the same numbers whatever the backend and the layout, also if workers die (`test_evaluator_contract`,
`test_evaluator_faults`); it leaves training alone (`test_isolation`); each argument works or is refused
(`test_evaluator_arguments`); results and intervals are what they say (`test_statistics`, `test_result`, here).
`evaluate_policy` and `RayEvalWorker` keep what their peers promise (`test_evaluate_policy`, `test_ray_eval_worker`).
"""

import math

import numpy as np
import pytest

from swath.evaluation.result import EvalResult, compare, episodes_of


def evaluated(returns, seeds=None, seeding="episode"):
    seeds = range(1, len(returns) + 1) if seeds is None else seeds
    rows = {i: (value, 1, True, False, seed) for i, (value, seed) in enumerate(zip(returns, seeds, strict=True))}
    return EvalResult({}, episodes_of(rows), seeding=seeding)


def test_pairs_are_found_by_seed_whatever_their_order():
    a = evaluated([1.0, 2.0, 3.0, 50.0], seeds=[10, 20, 30, 99])
    b = evaluated([7.0, 33.0, 2.0, 11.0], seeds=[77, 30, 20, 10])
    found = compare(a, b)
    assert found.n == 3
    assert found.paired
    assert found.difference == pytest.approx((10.0 + 0.0 + 30.0) / 3)
    assert found.probability_of_improvement == pytest.approx(2.5 / 3)


def test_pairing_cancels_what_is_luck_of_the_episode():
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
    numbers = (found.difference, found.ci_low, found.ci_high, found.probability_of_improvement)
    assert all(math.isnan(number) for number in numbers)


def test_results_read_back_compare_like_the_live_ones():
    a, b = evaluated([1.0, 2.0, 4.0]), evaluated([2.0, 2.0, 3.5])
    read = [EvalResult.from_json(result.to_json()) for result in (a, b)]
    assert compare(*read) == compare(a, b)


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        (evaluated([1.0, 2.0]), evaluated([1.0, 2.0], seeds=[2, 3]), "have 1 seeds in common"),
        (evaluated([1.0, 2.0], seeding="layout"), evaluated([1.0, 2.0]), "result_a.seeding is 'layout'"),
        (evaluated([1.0, 2.0]), evaluated([1.0, 2.0], seeding="none"), "result_b.seeding is 'none'"),
    ],
)
def test_results_that_cannot_be_paired_are_refused_with_the_way_out(a, b, says):
    with pytest.raises(ValueError, match=f"{says}.*paired=False"):
        compare(a, b)
    assert compare(a, b, paired=False).difference == 0.0
