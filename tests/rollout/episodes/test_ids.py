"""Trajectory ids and the sums of episodes against those of a loop, row by row."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from swath.rollout.episodes.statistics import LIFE_BITS, NO_TRAJECTORY, WORKER_BITS, TrajectoryIds


class RowByRow:
    """The same, row by row and env by env: ids by order of start, episodes by order of end, then by env."""

    def __init__(self, num_envs):
        self.counter, self.running = 0, [None] * num_envs

    def begin(self, envs):
        for env in envs:
            self.running[env] = None

    def label(self, reward, last, valid):
        ids, counts, ended = np.full(last.shape, NO_TRAJECTORY), np.zeros(last.shape, dtype=np.int64), []
        for t in range(last.shape[1]):
            for env in range(last.shape[0]):
                if valid[env, t]:
                    episode = self.running[env]
                    if episode is None:
                        episode = self.running[env] = [self.counter, 0.0, 0]
                        self.counter += 1
                    ids[env, t], counts[env, t] = episode[0], episode[2]
                    episode[1] += float(reward[env, t])
                    episode[2] += 1
                    if last[env, t]:
                        ended.append(tuple(episode))
                if last[env, t] or not valid[env, t]:
                    self.running[env] = None
        return ids, counts, ended


def grid(data, shape, chance):
    flags = st.sampled_from([True] + [False] * chance)
    return np.array(data.draw(st.lists(flags, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))).reshape(
        shape
    )


@given(st.data(), st.integers(1, 4), st.booleans())
def test_ids_and_sums_are_those_of_a_loop(data, num_envs, has_void_rows):
    fast, slow = TrajectoryIds(num_envs, counted=True), RowByRow(num_envs)
    for _ in range(data.draw(st.integers(1, 5))):
        if data.draw(st.booleans()):
            envs = sorted(data.draw(st.sets(st.integers(0, num_envs - 1))))
            fast.begin(envs)
            slow.begin(envs)
        shape = (num_envs, data.draw(st.integers(1, 7)))
        void = grid(data, shape, 4) if has_void_rows else np.zeros(shape, dtype=bool)
        last = grid(data, shape, 3)
        reward = np.arange(last.size, dtype=np.float32).reshape(shape) + 0.5
        ids, counts = fast.label(reward, last, ~void if has_void_rows else None)
        expected_ids, expected_counts, ended = slow.label(reward, last, ~void)
        np.testing.assert_array_equal(ids, expected_ids)
        np.testing.assert_array_equal(counts[~void], expected_counts[~void])
        assert ids.dtype == counts.dtype == np.int64
        assert fast.ended.tolist() == ended
        assert fast.next_id == slow.counter


def test_ids_of_another_worker_or_life_are_others():
    ids = TrajectoryIds(2, worker=3, life=5)
    given_ids, counts = ids.label(np.ones((2, 1)), np.zeros((2, 1), dtype=bool))
    first = 3 * 2**WORKER_BITS + 5 * 2**LIFE_BITS
    assert (given_ids.tolist(), counts) == ([[first], [first + 1]], None)
