"""Filters by themselves: what they make of observations, and what they remember."""

import copy
import pickle
import threading

import numpy as np
import pytest

from swath.rollout_workers import (
    AlgorithmConfig,
    ConcurrentMeanStdFilter,
    Filter,
    MeanStdFilter,
    NoFilter,
    get_filter,
)

SHAPES = [(), (3,), (3, 4, 4)]
BOTH = [MeanStdFilter, ConcurrentMeanStdFilter]


def drawn(n, shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(3.0, 2.0, (n, *shape)).astype(dtype)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_buffers_and_statistics_count_as_the_peer_has_it(shape, kind):
    first, second = kind(shape), kind(shape)
    for _ in range(5):
        first(np.ones(shape))
    assert (first.rs.n, first.buffer.n) == (5, 5)
    second.sync(first)
    assert (second.rs.n, second.buffer.n) == (5, 5)
    first.reset_buffer()
    assert (first.rs.n, first.buffer.n, second.buffer.n) == (5, 0, 5)
    first.apply_changes(second, with_buffer=False)
    assert (first.rs.n, first.buffer.n) == (10, 0)
    first.apply_changes(second, with_buffer=True)
    assert (first.rs.n, first.buffer.n) == (15, 5)
    second(np.ones(shape))
    assert (first.buffer.n, second.buffer.n) == (5, 6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_batch_equals_its_rows_pushed_one_by_one_and_is_normalised_by_all_of_them(shape):
    values = drawn(8, shape)
    batched, single = MeanStdFilter(shape, clip=None), MeanStdFilter(shape, clip=None)
    seen = batched(values)
    for value in values:
        single(value)
    for mine, theirs in ((batched.rs, single.rs), (batched.buffer, single.buffer)):
        assert mine.n == theirs.n == 8
        np.testing.assert_allclose(mine.mean, theirs.mean, rtol=1e-6)
        np.testing.assert_allclose(mine.std, theirs.std, rtol=1e-6)
    exact = values.astype(np.float64)
    expected = (exact - exact.mean(0)) / (exact.std(0, ddof=1) + 1e-6)
    np.testing.assert_allclose(seen, expected, rtol=1e-5, atol=1e-5)


OPTIONS = [
    ({"demean": True, "destd": True, "clip": None}, [-1.0, 0.0, 1.0]),
    ({"demean": True, "destd": False, "clip": None}, [-2.0, 0.0, 2.0]),
    ({"demean": False, "destd": True, "clip": None}, [1.0, 2.0, 3.0]),
    ({"demean": False, "destd": False, "clip": None}, [2.0, 4.0, 6.0]),
    ({"demean": False, "destd": True, "clip": 2.5}, [1.0, 2.0, 2.5]),
    ({"demean": True, "destd": True, "clip": 0.5}, [-0.5, 0.0, 0.5]),
]


@pytest.mark.parametrize(("options", "expected"), OPTIONS, ids=str)
def test_each_option_does_its_part(options, expected):
    seen = MeanStdFilter((1,), **options)(np.array([[2.0], [4.0], [6.0]]))
    np.testing.assert_allclose(seen[:, 0], expected, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "uint8"])
@pytest.mark.parametrize("batch", [True, False])
def test_the_dtype_is_kept_and_the_input_not_written(dtype, batch):
    values = np.array([[1, 2], [3, 9]], dtype=dtype)
    kept = values.copy()
    values.setflags(write=False)
    seen = MeanStdFilter((2,))(values if batch else values[0])
    assert (seen.dtype, seen.shape) == (values.dtype, values.shape if batch else (2,))
    np.testing.assert_array_equal(values, kept)


def test_without_update_it_learns_nothing():
    filt = MeanStdFilter((2,), clip=None)
    filt(np.array([[0.0, 0.0], [2.0, 4.0]]))
    seen = filt(np.array([1.0, 2.0]), update=False)
    np.testing.assert_allclose(seen, [0, 0])
    assert (filt.rs.n, filt.buffer.n) == (2, 2)


NESTS = [
    {"a": (2,), "b": {"c": (), "d": None}},
    ((2,), ((), None)),
    {"a": np.array([2]), "b": (np.array([], dtype=int), None)},
]


@pytest.mark.parametrize("shape", NESTS, ids=str)
@pytest.mark.parametrize("batch", [True, False])
def test_nested_observations_are_filtered_leaf_by_leaf_and_unshaped_leaves_pass_through(shape, batch):
    lead = (4,) if batch else ()
    box, number, through = drawn(1, (*lead, 2))[0], drawn(1, lead, seed=1)[0], object()
    if isinstance(shape, tuple):
        x = (box, (number, through))
    else:
        rest = {"c": number, "d": through} if isinstance(shape["b"], dict) else (number, through)
        x = {"a": box, "b": rest}
    filt = MeanStdFilter(shape, clip=None)
    seen = filt(x)
    assert type(seen) is type(x)
    first, rest = seen if isinstance(seen, tuple) else (seen["a"], seen["b"])
    inner, passed = rest if isinstance(rest, tuple) else (rest["c"], rest["d"])
    assert passed is through
    np.testing.assert_array_equal(first, MeanStdFilter((2,), clip=None)(box))
    np.testing.assert_array_equal(inner, MeanStdFilter((), clip=None)(number))
    other = filt.copy()
    other.apply_changes(filt)
    stat = other.rs[0] if isinstance(seen, tuple) else other.rs["a"]
    assert stat.n == (8 if batch else 2)


@pytest.mark.parametrize("x", [np.zeros(3), np.zeros((4, 3)), np.zeros((2, 2, 2)), np.zeros(())], ids=np.shape)
def test_an_observation_of_another_shape_is_refused(x):
    with pytest.raises(ValueError, match=r"observation of shape .*; wanted \(2,\), or such a batch"):
        MeanStdFilter((2,))(x)


def test_a_refused_observation_leaves_no_trace_in_any_leaf():
    filt = MeanStdFilter({"a": (2,), "b": (3,)})
    with pytest.raises(ValueError, match="shape"):
        filt({"a": np.zeros(2), "b": np.zeros(9)})
    assert (filt.rs["a"].n, filt.rs["b"].n) == (0, 0)


COPIES = {
    "copy": lambda filt: filt.copy(),
    "as_serializable": lambda filt: filt.as_serializable(),
    "pickle": lambda filt: pickle.loads(pickle.dumps(filt)),
    "deepcopy": copy.deepcopy,
    "flushed": lambda filt: filt.flushed(),
}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("way", COPIES)
def test_a_copy_has_the_same_state_and_shares_nothing(kind, way):
    filt = kind((2,), demean=False, destd=True, clip=3.0)
    filt(drawn(5, (2,)))
    filt.reset_buffer()
    filt(drawn(2, (2,), seed=1))
    made = COPIES[way](filt)
    assert type(made) is kind
    assert (made.demean, made.destd, made.clip, made.rs.n, made.buffer.n) == (False, True, 3.0, 7, 2)
    np.testing.assert_array_equal(made.rs.mean, filt.rs.mean)
    made(drawn(9, (2,)))
    made.rs.mean_array[...] = 0
    made.buffer.mean_array[...] = 0
    assert (filt.rs.n, filt.buffer.n) == (7, 0 if way == "flushed" else 2)
    assert filt.rs.mean.all()


def test_threads_that_share_a_concurrent_filter_lose_nothing():
    filt, shared = ConcurrentMeanStdFilter((2,)), MeanStdFilter((2,))
    values = drawn(400, (2,), dtype=np.float64)
    done = threading.Event()

    def push(part):
        for value in part:
            filt(value)

    def share():
        while not done.is_set():
            shared.apply_changes(filt.flushed())
            filt.rebase(filt.copy())

    pushing = [threading.Thread(target=push, args=(part,)) for part in np.split(values, 4)]
    sharing = threading.Thread(target=share)
    for thread in (*pushing, sharing):
        thread.start()
    for thread in pushing:
        thread.join()
    done.set()
    sharing.join()
    shared.apply_changes(filt.flushed())
    assert shared.rs.n == 400
    np.testing.assert_allclose(shared.rs.mean, values.mean(0), rtol=1e-6)


@pytest.mark.parametrize("x", [np.arange(3), {"a": np.arange(3)}, (np.arange(3), 1)], ids=lambda x: type(x).__name__)
def test_no_filter_hands_on_what_it_gets(x):
    assert NoFilter()(x) is x


NAMES = {"NoFilter": NoFilter, "MeanStdFilter": MeanStdFilter, "ConcurrentMeanStdFilter": ConcurrentMeanStdFilter}


@pytest.mark.parametrize("name", [*NAMES, "Other"])
def test_a_filter_is_got_by_the_names_that_a_config_takes_and_does_not_clip(name):
    config = AlgorithmConfig()
    if name not in NAMES:
        with pytest.raises(ValueError, match="observation_filter"):
            config.env_runners(observation_filter=name)
        return
    filt = get_filter(config.env_runners(observation_filter=name).observation_filter, (2,))
    assert type(filt) is NAMES[name]
    assert getattr(filt, "clip", None) is None


def test_a_filter_is_got_from_a_callable_which_is_told_the_shape():
    filt = get_filter(lambda shape: MeanStdFilter(shape, clip=5.0), (7,))
    assert (filt.rs.shape, filt.clip) == ((7,), 5.0)
    assert isinstance(filt, Filter)


@pytest.mark.parametrize(
    ("config", "error"),
    [("MeanStd", ValueError), (None, ValueError), (3, ValueError), (lambda shape: shape, TypeError)],
)
def test_what_is_no_filter_is_refused_by_name(config, error):
    with pytest.raises(error, match="observation_filter="):
        get_filter(config, (2,))
