"""Returns and lengths over fragments, against a loop in plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swath.collect.counters import REMEMBERED, Counters, Ended, EpisodeLog, EpisodeMeter
from swath.rollout.buffer import Rows
from swath.rollout.episodes.trajectory_ids import TrajectoryIds
from swath.rollout.fragment import Fragment


def fragment(reward, last, ids, valid=None):
    rows = Rows([], [], [], reward, last, np.zeros_like(last), valid)
    return Fragment(rows, *ids.label(rows.last, valid), 0)


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
    meter, log, hand, ids = EpisodeMeter(num_envs), EpisodeLog(), ByHand(num_envs), TrajectoryIds(num_envs)
    for n in steps:
        reward = rng.integers(0, 9, (num_envs, n)).astype(np.float32)
        last = rng.random((num_envs, n)) < rng.choice([0.05, 0.4, 0.9])
        if rng.random() < 0.3:  # all envs were reset before this fragment
            ids.begin()
            hand.forget()
        log.book([one.score for one in meter.add(fragment(reward, last, ids))])
        hand.add(reward, last, None)
        assert log.finished == len(hand.returns)
        assert log.mean_return == mean(hand.returns)
        assert log.mean_length == mean(hand.lengths)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(1, 12), st.integers(0, 2**31))
def test_rows_that_are_no_transitions_do_not_count(num_envs, n, seed):
    rng = np.random.default_rng(seed)
    meter, log, hand, ids = EpisodeMeter(num_envs), EpisodeLog(), ByHand(num_envs), TrajectoryIds(num_envs)
    before = np.zeros(num_envs, dtype=bool)
    for _ in range(4):
        reward = rng.integers(0, 9, (num_envs, n)).astype(np.float32)
        last, valid = np.zeros((num_envs, n), dtype=bool), np.ones((num_envs, n), dtype=bool)
        for t in range(n):  # the step after an end is void, as in NEXT_STEP vector envs
            valid[:, t] = ~before
            last[:, t] = (rng.random(num_envs) < 0.3) & valid[:, t]
            before = last[:, t]
        log.book([one.score for one in meter.add(fragment(reward, last, ids, valid))])
        hand.add(reward, last, valid)
    assert log.finished == len(hand.returns)
    assert log.mean_return == mean(hand.returns)
    assert log.mean_length == mean(hand.lengths)


def test_before_the_first_episode_there_are_no_means():
    log = EpisodeLog()
    assert (log.finished, log.mean_return, log.mean_length) == (0, None, None)


def test_frames_a_second_are_those_since_the_first_draw(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("swath.collect.counters.time.monotonic", lambda: now[0])
    counters = Counters(frames=50)
    assert counters.fps == 0
    counters.start_clock()
    counters.frames += 30
    now[0] += 2
    assert counters.fps == 15
    counters.start_clock()
    assert counters.fps == 15


def test_frames_that_are_restored_were_not_delivered_since_the_first_draw(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("swath.collect.counters.time.monotonic", lambda: now[0])
    counters = Counters()
    counters.start_clock()
    counters.deliver(30)
    counters.restore(1000, 50)
    now[0] += 2
    assert (counters.frames, counters.batches, counters.fps) == (1000, 50, 15)
    counters.deliver(10)
    assert counters.fps == 20


def test_each_episode_is_told_by_its_trajectory_in_the_order_of_ends():
    last = np.array([[False, True, False], [True, False, True]])
    made = fragment(np.ones((2, 3), dtype=np.float32), last, TrajectoryIds(2))
    assert EpisodeMeter(2).add(made) == ((1, (1.0, 1)), (0, (2.0, 2)), (2, (2.0, 2)))


def test_episodes_count_with_the_frames_in_which_they_end():
    counters, heard = Counters(), []
    counters.told = heard.append
    counters.deliver(8, (Ended(0, (3.0, 5)),))
    counters.add(2, (Ended(1, (1.0, 1)),))
    assert (counters.frames, counters.batches, counters.episodes.finished) == (10, 1, 2)
    assert counters.episodes.mean_return == 2
    assert heard == [((0, (3.0, 5)),), ((1, (1.0, 1)),)]
