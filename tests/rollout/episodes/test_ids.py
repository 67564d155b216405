"""Trajectory ids against ones given row by row."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from swath.rollout.episodes.ids import LIFE_BITS, NO_TRAJECTORY, WORKER_BITS, TrajectoryIds


class RowByRow:
    """The same, row by row and env by env: ids by order of start, then by env."""

    def __init__(self, num_envs):
        self.counter, self.running, self.steps = 0, [None] * num_envs, [0] * num_envs

    def begin(self, envs):
        for env in envs:
            self.running[env] = None

    def label(self, last, valid):
        ids, counts = np.full(last.shape, NO_TRAJECTORY), np.zeros(last.shape, dtype=np.int64)
        for t in range(last.shape[1]):
            for env in range(last.shape[0]):
                if valid[env, t]:
                    if self.running[env] is None:
                        self.running[env], self.steps[env], self.counter = self.counter, 0, self.counter + 1
                    ids[env, t], counts[env, t] = self.running[env], self.steps[env]
                    self.steps[env] += 1
                if last[env, t] or not valid[env, t]:
                    self.running[env] = None
        return ids, counts


def grid(data, shape, chance):
    flags = st.sampled_from([True] + [False] * chance)
    return np.array(data.draw(st.lists(flags, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))).reshape(
        shape
    )


@given(st.data(), st.integers(1, 4), st.booleans())
def test_ids_are_given_as_they_are_row_by_row(data, num_envs, has_void_rows):
    fast, slow = TrajectoryIds(num_envs), RowByRow(num_envs)
    for _ in range(data.draw(st.integers(1, 5))):
        if data.draw(st.booleans()):
            envs = sorted(data.draw(st.sets(st.integers(0, num_envs - 1))))
            fast.begin(envs)
            slow.begin(envs)
        shape = (num_envs, data.draw(st.integers(1, 7)))
        void = grid(data, shape, 4) if has_void_rows else np.zeros(shape, dtype=bool)
        last = grid(data, shape, 3) & ~void
        ids, counts = fast.label(last, ~void if has_void_rows else None)
        expected_ids, expected_counts = slow.label(last, ~void)
        np.testing.assert_array_equal(ids, expected_ids)
        np.testing.assert_array_equal(counts[~void], expected_counts[~void])
        assert ids.dtype == counts.dtype == np.int64
        assert fast.next_id == slow.counter


def test_ids_of_another_worker_or_life_are_others():
    ids = TrajectoryIds(2, worker=3, life=5)
    given_ids, _ = ids.label(np.zeros((2, 1), dtype=bool))
    assert given_ids.tolist() == [[3 * 2**WORKER_BITS + 5 * 2**LIFE_BITS], [3 * 2**WORKER_BITS + 5 * 2**LIFE_BITS + 1]]


def test_what_was_given_is_not_written_again():
    ids = TrajectoryIds(2)
    first, counts = ids.label(np.zeros((2, 3), dtype=bool))
    kept = first.copy(), counts.copy()
    ids.label(np.ones((2, 3), dtype=bool))
    ids.begin()
    ids.label(np.zeros((2, 3), dtype=bool))
    np.testing.assert_array_equal(first, kept[0])
    np.testing.assert_array_equal(counts, kept[1])
