"""Statistics of a stream of values, against those of the values written down."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swath.rollout_workers import RunningStat

SHAPES = [(), (3,), (3, 4)]


def assert_knows(stat, values):
    """The statistics are those of `values` `[n, …]`."""
    assert stat.n == len(values)
    np.testing.assert_allclose(stat.mean, values.mean(0), rtol=1e-6, atol=1e-9)
    if len(values) > 1:
        np.testing.assert_allclose(stat.var, values.var(0, ddof=1), rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(stat.std, values.std(0, ddof=1), rtol=1e-6, atol=1e-9)


def drawn(n, shape, seed=0, centre=0.0):
    return np.random.default_rng(seed).normal(centre, 2.0, (n, *shape))


@pytest.mark.parametrize("pushes", [0, 1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fewer_than_two_values_have_no_variance(shape, pushes):
    stat = RunningStat(shape)
    stat.push_batch(np.ones((pushes, *shape)))
    for spread in (stat.var, stat.std):
        np.testing.assert_array_equal(spread, np.zeros(shape, dtype=np.float32), strict=True)
    np.testing.assert_array_equal(stat.mean, np.full(shape, float(pushes)), strict=True)


@settings(deadline=None)
@given(
    st.sampled_from(SHAPES),
    st.lists(st.integers(0, 6), min_size=1, max_size=5),
    st.sampled_from([0.0, -3.0, 1e4]),
)
def test_batches_of_any_size_equal_single_pushes_and_the_values_at_once(shape, sizes, centre):
    values = drawn(sum(sizes), shape, centre=centre)
    batched, single = RunningStat(shape), RunningStat(shape)
    for batch in np.split(values, np.cumsum(sizes)[:-1]):
        batched.push_batch(batch)
    for value in values:
        single.push(value)
    assert batched.n == batched.num_pushes_delta == single.n == len(values)
    np.testing.assert_allclose(batched.mean, single.mean, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(batched.var, single.var, rtol=1e-6, atol=1e-9)
    if len(values):
        assert_knows(batched, values)


def test_float32_values_far_from_zero_keep_their_variance():
    values = (1e5 + np.arange(1000) % 2).astype(np.float32)
    stat = RunningStat()
    for batch in np.split(values, 10):
        stat.push_batch(batch)
    np.testing.assert_allclose(stat.var, values.astype(np.float64).var(ddof=1), rtol=1e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_another_ones_news_are_merged_as_if_pushed_here(shape):
    mine, theirs = drawn(5, shape), drawn(9, shape, seed=1)
    stat, other = RunningStat(shape), RunningStat(shape)
    stat.push_batch(mine)
    other.push_batch(drawn(4, shape, seed=2))
    other.reset_delta()
    other.push_batch(theirs)
    stat.update(other)
    assert_knows(stat, np.concatenate([mine, theirs]))
    assert stat.num_pushes_delta == 5
    assert other.n == 13


def test_the_delta_is_exactly_what_was_pushed_since_its_reset():
    stat, old, new = RunningStat((2,)), drawn(4, (2,)), drawn(6, (2,), seed=1, centre=7.0)
    stat.push_batch(old)
    stat.reset_delta()
    stat.push_batch(new[:1])
    stat.push_batch(new[1:])
    delta = RunningStat((2,))
    delta.update(stat)
    assert_knows(delta, new)
    assert_knows(stat, np.concatenate([old, new]))
    assert stat.num_pushes_delta == 6
    np.testing.assert_allclose(stat.mean_delta_array, new.mean(0))
    np.testing.assert_allclose(stat.sum_sq_diff_delta_array, ((new - new.mean(0)) ** 2).sum(0))


COPIES = {
    "copy": RunningStat.copy,
    "state": lambda stat: RunningStat.from_state(stat.to_state()),
    "pickle": lambda stat: pickle.loads(pickle.dumps(stat)),
}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_copy_knows_the_same_and_shares_nothing(shape, way):
    stat, values = RunningStat(shape), drawn(7, shape)
    stat.push_batch(values[:3])
    stat.reset_delta()
    stat.push_batch(values[3:])
    made = COPIES[way](stat)
    assert made.to_state().keys() == stat.to_state().keys()
    for name, value in stat.to_state().items():
        np.testing.assert_array_equal(getattr(made, name), value, strict=name.endswith("array"))
    made.push_batch(values)
    made.mean_array[...] = 0
    assert_knows(stat, values)


def test_the_statistics_can_be_set():
    stat = RunningStat((2,))
    stat.num_pushes, stat.mean_array, stat.sum_sq_diff_array = 5, np.array([1.0, 2.0]), np.array([16.0, 4.0])
    assert (stat.n, stat.mean.tolist(), stat.var.tolist(), stat.std.tolist()) == (5, [1, 2], [4, 1], [2, 1])


@pytest.mark.parametrize(("method", "value"), [("push", [1.0]), ("push_batch", [[1.0]]), ("push_batch", 1.0)])
def test_a_value_of_another_shape_is_refused_and_not_counted(method, value):
    stat = RunningStat((2,))
    with pytest.raises(ValueError, match=r"among those of shape \(2,\)"):
        getattr(stat, method)(value)
    assert stat.n == 0
