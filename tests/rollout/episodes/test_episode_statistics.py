"""Returns and lengths over fragments and steps, against a loop in plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swath.rollout.episodes.ids import TrajectoryIds
from swath.rollout.episodes.statistics import REMEMBERED, EpisodeLog, EpisodeSums


def ended(sums, ids, reward, last, valid=None):
    """The episodes that end in the next fragment."""
    return sums.count_fragment(reward, *ids.label(last, valid), last, valid)


class ByHand:
    """The same, one row at a time."""

    def __init__(self, num_envs):
        self.running = [[0.0, 0] for _ in range(num_envs)]
        self.returns, self.lengths = [], []

    def add(self, reward, last, valid):
        n_envs, n_steps = reward.shape
        for t in range(n_steps):
            for env in range(n_envs):
                if valid is not None and not valid[env, t]:
                    continue
                self.running[env][0] += float(reward[env, t])
                self.running[env][1] += 1
                if last[env, t]:
                    self.returns.append(self.running[env][0])
                    self.lengths.append(self.running[env][1])
                    self.running[env] = [0.0, 0]

    def forget(self):
        self.running = [[0.0, 0] for _ in self.running]


def mean(values):
    return pytest.approx(np.mean(values[-REMEMBERED:])) if values else None


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.lists(st.integers(1, 9), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_means_are_those_of_a_loop_by_hand(num_envs, steps, rnd):
    rng = np.random.default_rng(rnd.randrange(2**31))
    sums, log, hand, ids = EpisodeSums(num_envs), EpisodeLog(), ByHand(num_envs), TrajectoryIds(num_envs)
    for n in steps:
        reward = rng.integers(0, 9, (num_envs, n)).astype(np.float32)
        last = rng.random((num_envs, n)) < rng.choice([0.05, 0.4, 0.9])
        if rng.random() < 0.3:  # all envs were reset before this fragment
            ids.begin()
            hand.forget()
        log.add(ended(sums, ids, reward, last))
        hand.add(reward, last, None)
        assert log.finished == len(hand.returns)
        assert log.mean_return == mean(hand.returns)
        assert log.mean_length == mean(hand.lengths)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(1, 12), st.integers(0, 2**31))
def test_rows_that_are_no_transitions_do_not_count(num_envs, n, seed):
    rng = np.random.default_rng(seed)
    sums, log, hand, ids = EpisodeSums(num_envs), EpisodeLog(), ByHand(num_envs), TrajectoryIds(num_envs)
    before = np.zeros(num_envs, dtype=bool)
    for _ in range(4):
        reward = rng.integers(0, 9, (num_envs, n)).astype(np.float32)
        last, valid = np.zeros((num_envs, n), dtype=bool), np.ones((num_envs, n), dtype=bool)
        for t in range(n):  # the step after an end is void, as in NEXT_STEP vector envs
            valid[:, t] = ~before
            last[:, t] = (rng.random(num_envs) < 0.3) & valid[:, t]
            before = last[:, t]
        log.add(ended(sums, ids, reward, last, valid))
        hand.add(reward, last, valid)
    assert log.finished == len(hand.returns)
    assert log.mean_return == mean(hand.returns)
    assert log.mean_length == mean(hand.lengths)


def test_each_episode_has_its_trajectory_in_the_order_of_ends():
    last = np.array([[False, True, False], [True, False, True]])
    made = ended(EpisodeSums(2), TrajectoryIds(2), np.ones((2, 3)), last)
    assert made.tolist() == [(1, 1.0, 1), (0, 2.0, 2), (2, 2.0, 2)]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(0, 2**31))
def test_fragments_and_single_steps_give_the_same_sums(num_envs, n, seed):
    rng = np.random.default_rng(seed)
    whole, stepped, ids = EpisodeSums(num_envs), EpisodeSums(num_envs), TrajectoryIds(num_envs)
    for _ in range(3):
        reward = rng.integers(0, 9, (num_envs, n)).astype(np.float32)
        valid = rng.random((num_envs, n)) < 0.8
        last = (rng.random((num_envs, n)) < 0.3) & valid
        if rng.random() < 0.3:
            ids.begin()
            stepped.begin(range(num_envs))
        given, counts = ids.label(last, valid)
        made, found = whole.count_fragment(reward, given, counts, last, valid), []
        for t in range(n):
            stepped.begin(np.flatnonzero(valid[:, t] & (counts[:, t] == 0)))
            stepped.count_step(reward[:, t], void=np.flatnonzero(~valid[:, t]))
            found += [(given[env, t], stepped.returns[env], stepped.lengths[env]) for env in np.flatnonzero(last[:, t])]
        assert made.tolist() == found


def test_what_is_not_finite_stays_in_its_episode():
    reward, last = np.array([[np.nan, 1, 1, np.inf, 1, 1]]), np.array([[False, True, True, False, True, False]])
    made = ended(EpisodeSums(1), TrajectoryIds(1), reward, last)
    np.testing.assert_array_equal(made["total"], [np.nan, 1, np.inf])
