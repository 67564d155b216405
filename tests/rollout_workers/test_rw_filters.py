"""Filters and their statistics, which count each observation of several workers once.

And preprocessors of observations on their way to policies, and of actions on their way to envs.
"""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import utils
from hypothesis import given, settings
from hypothesis import strategies as st
from rw_toys import DEFAULT, mock
from set_toys import toy_set

from swath.rollout.spaces import packer
from swath.rollout_workers import (
    ConcurrentMeanStdFilter,
    FilterManager,
    MeanStdFilter,
    NoFilter,
    RunningStat,
    get_filter,
    get_preprocessor,
)
from swath.rollout_workers.processing import NoPreprocessor, action_processor

SHAPES = [(), (3,), (3, 4, 4)]


def drawn(n, shape, seed=0, dtype=np.float64, centre=3.0):
    return np.random.default_rng(seed).normal(centre, 2.0, (n, *shape)).astype(dtype)


OPTIONS = [
    ({"demean": True, "destd": True, "clip": None}, [-1.0, 0.0, 1.0]),
    ({"demean": True, "destd": False, "clip": None}, [-2.0, 0.0, 2.0]),
    ({"demean": False, "destd": True, "clip": 2.5}, [1.0, 2.0, 2.5]),
    ({"demean": True, "destd": True, "clip": 0.5}, [-0.5, 0.0, 0.5]),
]


@pytest.mark.parametrize(("options", "expected"), OPTIONS, ids=str)
def test_each_option_does_its_part(options, expected):
    filtered = MeanStdFilter((1,), **options)(np.array([[2.0], [4.0], [6.0]]))
    np.testing.assert_allclose(filtered[:, 0], expected, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("batch", [True, False])
def test_nested_observations_are_filtered_leaf_by_leaf_and_unshaped_leaves_pass_through(batch):
    lead = (4,) if batch else ()
    box, number, through = drawn(1, (*lead, 2))[0], drawn(1, lead, seed=1)[0], object()
    filt = MeanStdFilter({"a": (2,), "b": (np.array([], dtype=int), None)}, clip=None)
    filtered = filt({"a": box, "b": (number, through)})
    np.testing.assert_array_equal(filtered["a"], MeanStdFilter((2,), clip=None)(box))
    np.testing.assert_array_equal(filtered["b"][0], MeanStdFilter((), clip=None)(number))
    assert filtered["b"][1] is through
    other = filt.copy()
    other.apply_changes(filt)
    assert other.rs["a"].n == (8 if batch else 2)


@pytest.mark.parametrize("kind", [MeanStdFilter, ConcurrentMeanStdFilter])
@pytest.mark.parametrize("method", ["copy", "as_serializable", "pickle"])
def test_a_copy_has_the_same_state_and_shares_nothing(kind, method):
    filt = kind((2,), demean=False, destd=True, clip=3.0)
    filt(drawn(5, (2,)))
    filt.reset_buffer()
    filt(drawn(2, (2,), seed=1))
    clone = pickle.loads(pickle.dumps(filt)) if method == "pickle" else getattr(filt, method)()
    assert (type(clone), clone.demean, clone.destd, clone.clip) == (kind, False, True, 3.0)
    assert (clone.rs.n, clone.buffer.n) == (7, 2)
    np.testing.assert_array_equal(clone.rs.mean, filt.rs.mean)
    clone(drawn(9, (2,)))
    clone.rs.mean_array[...] = 0
    assert (filt.rs.n, filt.buffer.n) == (7, 2)
    assert filt.rs.mean.all()


def test_buffers_and_statistics_count_as_the_peer_has_it():
    first, second = MeanStdFilter(()), MeanStdFilter(())
    for _ in range(5):
        first(np.ones(()))
    second.sync(first)
    first.reset_buffer()
    assert (first.rs.n, first.buffer.n, second.rs.n, second.buffer.n) == (5, 0, 5, 5)
    first.apply_changes(second, with_buffer=False)
    assert (first.rs.n, first.buffer.n) == (10, 0)
    first.apply_changes(second, with_buffer=True)
    second(np.ones(()))
    assert (first.rs.n, first.buffer.n, second.buffer.n) == (15, 5, 6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_the_dtype_is_kept_the_input_not_written_and_another_shape_refused(dtype):
    values = np.array([[1, 2], [3, 9]], dtype=dtype)
    values.setflags(write=False)
    for x in (values, values[0]):
        filtered = MeanStdFilter((2,))(x)
        assert (filtered.dtype, filtered.shape) == (x.dtype, x.shape)
    for x in (np.zeros(3), np.zeros((2, 2, 2)), np.zeros(())):
        with pytest.raises(ValueError, match=r"observation of shape .*; wanted \(2,\), or a batch"):
            MeanStdFilter((2,))(x)


def test_threads_that_share_a_concurrent_filter_lose_nothing():
    filt, values = ConcurrentMeanStdFilter((2,)), drawn(400, (2,))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda part: list(map(filt, part)), np.split(values, 4)))
    assert filt.rs.n == filt.buffer.n == 400
    np.testing.assert_allclose(filt.rs.mean, values.mean(0), rtol=1e-6)


KINDS = {"NoFilter": NoFilter, "MeanStdFilter": MeanStdFilter, "ConcurrentMeanStdFilter": ConcurrentMeanStdFilter}


def test_a_filter_is_got_by_name_or_from_a_callable_which_gets_the_shape():
    for name, kind in KINDS.items():
        filt = get_filter(name, (2,))
        assert (type(filt), getattr(filt, "clip", None)) == (kind, None)
    filt = get_filter(lambda shape: MeanStdFilter(shape, clip=5.0), (7,))
    assert (filt.rs.shape, filt.clip) == ((7,), 5.0)
    for wrong, error in (("MeanStd", ValueError), (None, ValueError), (lambda shape: shape, TypeError)):
        with pytest.raises(error, match="observation_filter="):
            get_filter(wrong, (2,))
    for x in (np.arange(3), {"a": np.arange(3)}):
        assert NoFilter()(x) is x


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(SHAPES), st.lists(st.integers(0, 6), min_size=1, max_size=5), st.sampled_from([0.0, -3.0, 1e4]))
def test_batches_of_any_size_equal_single_pushes_and_the_values_at_once(shape, sizes, centre):
    values = drawn(sum(sizes), shape, centre=centre)
    batched, single = RunningStat(shape), RunningStat(shape)
    for batch in np.split(values, np.cumsum(sizes)[:-1]):
        batched.push_batch(batch)
    for value in values:
        single.push(value)
    wanted = values.var(0, ddof=1) if len(values) > 1 else np.zeros(shape)
    for stat in (batched, single):
        assert stat.n == stat.num_pushes_delta == len(values)
        assert stat.var.dtype == stat.std.dtype == np.float32
        np.testing.assert_allclose(stat.var, wanted, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(stat.std, np.sqrt(wanted), rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(stat.mean, values.mean(0) if len(values) else 0, rtol=1e-6, atol=1e-9)


def test_the_delta_has_the_values_since_its_reset_and_copies_share_nothing():
    stat, old, new = RunningStat((2,)), drawn(4, (2,)), drawn(6, (2,), seed=1, centre=7.0)
    stat.push_batch(old)
    stat.reset_delta()
    stat.push_batch(new[:1])
    stat.push_batch(new[1:])
    for clone in (stat.copy(), RunningStat.from_state(stat.to_state()), stat):
        assert (clone.n, clone.num_pushes_delta) == (10, 6)
        np.testing.assert_allclose(clone.mean_delta_array, new.mean(0))
        np.testing.assert_allclose(clone.sum_sq_diff_delta_array, ((new - new.mean(0)) ** 2).sum(0))
        clone.push_batch(old)
        clone.mean_array[...] = 0


def test_statistics_can_be_set_and_a_value_of_another_shape_is_refused_and_not_counted():
    stat = RunningStat((2,))
    for method, value in (("push", [1.0]), ("push_batch", [[1.0]]), ("push_batch", 1.0)):
        with pytest.raises(ValueError, match=r"to statistics of shape \(2,\)"):
            getattr(stat, method)(value)
    assert stat.n == 0
    stat.num_pushes, stat.mean_array, stat.sum_sq_diff_array = 5, np.array([1.0, 2.0]), np.array([16.0, 4.0])
    assert (stat.n, stat.mean.tolist(), stat.var.tolist(), stat.std.tolist()) == (5, [1, 2], [4, 1], [2, 1])


def one_that_saw(*batches):
    filt = MeanStdFilter(batches[0].shape[1:], clip=None)
    for batch in batches:
        filt(batch)
    return filt


def assert_equal_statistics(filt, other):
    assert filt.rs.n == other.rs.n
    np.testing.assert_allclose(filt.rs.mean, other.rs.mean, rtol=1e-6)
    np.testing.assert_allclose(filt.rs.std, other.rs.std, rtol=1e-6)


def filter_of(worker):
    return worker.filters[DEFAULT]


def see(worker, values):
    worker.filters[DEFAULT](values)


def see_later(worker, values):
    """See these right after telling what was seen before."""
    get_filters = worker.get_filters

    def instead(flush_after=False):
        filters, worker.get_filters = get_filters(flush_after), get_filters
        see(worker, values)
        return filters

    worker.get_filters = instead


FILTER = {"observation_filter": "MeanStdFilter"}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=1, max_size=4))
def test_after_each_round_all_equal_one_filter_that_saw_everything_once(rounds):
    everything = []
    with toy_set(**FILTER) as workers:
        for number, sizes in enumerate(rounds):
            batches = [drawn(n, (3,), seed=3 * number + i, centre=number) for i, n in enumerate(sizes)]
            everything += batches
            workers.foreach_worker(see, kwargs=[{"values": values} for values in batches])
            FilterManager.synchronize(workers.local_worker().filters, workers, True, 7.0, True)
            for worker, filt in workers.foreach_worker(filter_of, with_ids=True):
                assert_equal_statistics(filt, one_that_saw(*everything))
                assert worker == 0 or filt.buffer.n == 0


def test_observations_during_a_synchronisation_count_for_all_the_next_time():
    early, later = drawn(5, (3,), seed=1), drawn(4, (3,), seed=2)
    with toy_set(**FILTER) as workers:
        for func, values in ((see, early), (see_later, later)):
            workers.foreach_worker(func, kwargs={"values": values}, worker_ids=[1], local_worker=False)
        for others in ([early], [early, later]):
            workers.sync_filters()
            local, first, second = workers.foreach_worker(filter_of)
            assert_equal_statistics(first, one_that_saw(early, later))
            for filt in (local, second):
                assert_equal_statistics(filt, one_that_saw(*others))
            assert first.buffer.n == (4 if others == [early] else 0)


@pytest.mark.parametrize("flush", [True, False])
def test_filters_are_copied_before_their_buffers_are_emptied_and_statistics_stay(flush):
    with mock(config=FILTER) as worker:
        see(worker, drawn(3, (1,)))
        copied = worker.get_filters(flush_after=flush)[DEFAULT]
        see(worker, drawn(2, (1,)))
        assert (copied.rs.n, copied.buffer.n) == (3, 3)
        assert (filter_of(worker).rs.n, filter_of(worker).buffer.n) == (5, 2 if flush else 5)


def test_new_statistics_are_taken_the_own_buffer_is_merged_and_stays_and_the_new_ones_buffer_is_not_used():
    first_values, others = drawn(3, (1,), seed=1), drawn(5, (1,), seed=2)
    with mock(config=FILTER) as worker:
        see(worker, first_values)
        worker.sync_filters({DEFAULT: (new := one_that_saw(others))})
        assert_equal_statistics(filter_of(worker), one_that_saw(others, first_values))
        assert (filter_of(worker).buffer.n, new.buffer.n, new.rs.n) == (3, 5, 5)


BOX = spaces.Box(-2, 3, (2, 2), np.float32)
IMAGE = spaces.Box(0, 255, (4, 4, 3), np.uint8)
DEEP = spaces.Dict(
    {"z": spaces.Tuple((spaces.Discrete(3, start=-1), BOX)), "a": spaces.Dict({"b": spaces.MultiBinary(3)})}
)

VECTORS = {
    "discrete": (spaces.Discrete(5), 5),
    "discrete from -2": (spaces.Discrete(3, start=-2), 3),
    "multi-discrete": (spaces.MultiDiscrete([2, 3, 1]), 6),
    "multi-discrete from": (spaces.MultiDiscrete([2, 3], start=[5, -1]), 5),
    "image and number": (spaces.Dict({"image": IMAGE, "n": spaces.Discrete(2)}), 50),
    "deep": (DEEP, 10),
    "float64 inside": (spaces.Tuple((spaces.Box(-1, 1, (), np.float64),)), 1),
}


def samples(space, n=6):
    space.seed(1)
    return [space.sample() for _ in range(n)]


@pytest.mark.parametrize("name", VECTORS)
def test_observations_become_the_vectors_that_gymnasium_makes_of_them(name):
    space, size = VECTORS[name]
    preprocessor, rows = get_preprocessor(space)(space), samples(space)
    expected = np.stack([utils.flatten(space, row) for row in rows]).astype(np.float32)
    batch = preprocessor.transform_batch(packer(preprocessor.leaves)(rows))
    np.testing.assert_array_equal(batch, expected, strict=True)
    np.testing.assert_array_equal(preprocessor.transform(rows[0]), expected[0], strict=True)
    processed = preprocessor.observation_space
    assert (preprocessor.shape, processed.dtype, processed.original_space) == ((size,), np.float32, space)
    assert all(row in processed for row in expected)
    np.testing.assert_array_equal(processed.high, utils.flatten_space(space).high.astype(np.float32))


def test_a_float64_in_a_vector_that_float32_rounds_warns_once_and_one_beyond_its_range_is_refused():
    space = spaces.Dict({"at": spaces.Box(0, np.inf, (1,), np.float64)})
    preprocessor = get_preprocessor(space)(space)
    with pytest.warns(UserWarning, match=r"the env returned 17000000000\.0 for .*'at'.* becomes float32") as caught:
        preprocessor.transform_batch([np.array([[1.7e10]])])
    preprocessor.transform_batch([np.array([[1.7e10]])])
    assert len(caught) == 1
    with pytest.raises(ValueError, match=r"the env returned 1e\+39 for .* which float32 cannot hold"):
        preprocessor.transform({"at": np.array([1e39])})


@pytest.mark.parametrize("space", [BOX, IMAGE, spaces.MultiBinary(3), spaces.Box(-1, 1, (), np.float64)], ids=str)
def test_boxes_and_bits_stay_unchanged(space):
    preprocessor, rows = get_preprocessor(space)(space), samples(space)
    batch = np.stack(rows)
    assert type(preprocessor) is NoPreprocessor
    assert (preprocessor.observation_space is space, preprocessor.shape) == (True, space.shape)
    assert preprocessor.transform_batch([batch]) is batch
    assert preprocessor.transform(rows[0]) is rows[0]


def test_without_preprocessing_nested_observations_stay_nested():
    preprocessor = NoPreprocessor(DEEP)
    (row,) = samples(DEEP, 1)
    leaves = packer(preprocessor.leaves)([row, row])
    batch = preprocessor.transform_batch(leaves)
    assert list(batch) == ["a", "z"]
    for found, leaf in zip((batch["a"]["b"], *batch["z"]), leaves, strict=True):
        assert found is leaf
    assert (preprocessor.observation_space, preprocessor.shape, preprocessor.transform(row)) == (DEEP, None, row)


def test_values_outside_their_space_and_unsupported_spaces_are_refused():
    outside = [(spaces.Discrete(3), 3), (spaces.Discrete(3, start=2), 1), (spaces.MultiDiscrete([2, 3]), [2, 0])]
    for space, observation in outside:
        with pytest.raises(ValueError, match=r"the observation .* is not in (Multi)?Discrete"):
            get_preprocessor(space)(space).transform(observation)
    for space in (spaces.Text(4), spaces.Dict({"a": spaces.Sequence(BOX)})):
        with pytest.raises(TypeError, match="cannot be served"):
            get_preprocessor(space)(space)


INF = np.inf
BOUNDED = spaces.Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))
HALF_OPEN = spaces.Box(np.array([-2, 0], np.float32), np.array([2, INF], np.float32))
COUNT = spaces.Box(3, 9, (2,), np.int64)
BYTES = spaces.Box(250, 255, (2,), np.uint8)

# action space, the policy's action, what the env gets: unchanged, normalised, clipped, both
TABLE = [
    (BOUNDED, [0.0, 0.0], [0.0, 0.0], [0.0, 5.0], [0.0, 0.0], [0.0, 5.0]),
    (BOUNDED, [-1.0, 1.0], [-1.0, 1.0], [-2.0, 10.0], [-1.0, 1.0], [-2.0, 10.0]),
    (BOUNDED, [3.0, -3.0], [3.0, -3.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]),
    (HALF_OPEN, [3.0, -3.0], [3.0, -3.0], [3.0, -3.0], [2.0, 0.0], [2.0, 0.0]),
    (COUNT, [-1, 8], [-1, 8], [2, 11], [3, 8], [3, 9]),
    (BYTES, [0, 5], [0, 5], [250, 255], [250, 250], [250, 255]),
    (spaces.MultiDiscrete([2, 3]), [1, 2], [1, 2], [1, 2], [1, 2], [1, 2]),
    (spaces.MultiBinary(2), [1, 0], [1, 0], [1, 0], [1, 0], [1, 0]),
]
DONE = [(False, False), (True, False), (False, True), (True, True)]


@pytest.mark.parametrize(("space", "action", "expected"), [(row[0], row[1], row[2:]) for row in TABLE], ids=str)
@pytest.mark.parametrize("setting", range(4), ids=["neither", "normalize", "clip", "both"])
def test_each_setting_does_its_part_to_a_batch(space, action, expected, setting):
    raw = np.array([action, action], dtype=np.float32 if space.dtype == np.float32 else np.int64)
    kept = raw.copy()
    normalize, clip = DONE[setting]
    process = action_processor(space, normalize=normalize, clip=clip)
    (out,) = [raw] if process is None else process([raw])
    np.testing.assert_allclose(out, [expected[setting]] * 2, rtol=1e-6)
    np.testing.assert_array_equal(raw, kept)
    if setting == 3:
        assert out.dtype == (space.dtype if isinstance(space, spaces.Box) else raw.dtype)


@pytest.mark.parametrize(("action", "expected"), [(5, 255), (6, None)])
@pytest.mark.parametrize("clip", [False, True])
def test_sums_with_a_lower_bound_do_not_wrap_around(action, expected, clip):
    process = action_processor(BYTES, normalize=True, clip=clip)
    raw = [np.full((1, 2), action, np.uint8)]
    if expected is None and not clip:
        with pytest.raises(ValueError, match=r"the policy answered 256 for 'action', which uint8 cannot hold"):
            process(raw)
    else:
        assert process(raw)[0].tolist() == [[255, 255]]
