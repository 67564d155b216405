"""The books of an evaluation."""

import math

import numpy as np

from swath.evaluate.ledger import Booked, Ledger
from swath.evaluate.limit import EpisodeLimit


def test_returns_are_summed_in_double_precision_whatever_the_env_gives():
    ledger = Ledger(1)
    for _ in range(10):
        ledger.add(np.array([0.1], dtype=np.float32))
    assert ledger.returns[0] == sum([float(np.float32(0.1))] * 10)
    assert ledger.lengths[0] == 10


def test_void_rows_add_neither_rewards_nor_steps():
    ledger = Ledger(3)
    ledger.add(np.array([1.0, 2.0, 3.0]), void=[1])
    assert ledger.returns.tolist() == [1.0, 0.0, 3.0]
    assert ledger.lengths.tolist() == [1, 0, 1]


def test_an_episode_begins_from_nothing_and_the_others_go_on():
    ledger = Ledger(2)
    ledger.add(np.array([5.0, 7.0]))
    ledger.begin([0])
    assert ledger.returns.tolist() == [0.0, 7.0]
    assert ledger.lengths.tolist() == [0, 1]


def test_rows_come_out_in_the_order_of_the_episodes_not_of_their_ends():
    ledger = Ledger(2)
    ledger.book(1, Booked(11.0, 3, terminated=True, truncated=False, seed=5))
    ledger.book(0, Booked(10.0, 9, terminated=False, truncated=True))
    episodes = ledger.episodes()
    assert len(ledger) == 2
    assert episodes.returns.tolist() == [10.0, 11.0]
    assert episodes.lengths.tolist() == [9, 3]
    assert episodes.terminated.tolist() == [False, True]
    assert episodes.truncated.tolist() == [True, False]
    assert episodes.seeds.tolist() == [-1, 5]
    assert [ledger.count_of(slot, 2) for slot in range(2)] == [1, 1]


def test_infinite_rewards_are_summed_without_warnings():
    ledger = Ledger(1)
    ledger.add(np.array([np.inf]))
    ledger.add(np.array([-np.inf]))
    assert math.isnan(ledger.returns[0])


def test_the_limit_cuts_at_the_step_that_makes_the_episode_as_long_as_allowed():
    ledger = Ledger(2)
    limit = EpisodeLimit(3, ledger.lengths)
    cuts = []
    for t in range(4):
        if t == 1:
            ledger.begin([1])
        cuts.append(list(limit.tick()))
        ledger.add(np.zeros(2))
        ledger.begin(limit.cut)
    assert cuts == [[], [], [0], [1]]


def test_the_limit_leaves_slots_alone_that_make_no_step():
    ledger = Ledger(2)
    limit = EpisodeLimit(1, ledger.lengths)
    limit.stop([0])
    assert list(limit.tick()) == [1]
    limit.restart([0])
    assert list(limit.tick()) == [0, 1]


def test_without_a_limit_nothing_is_cut():
    limit = EpisodeLimit(None, np.array([10**9]))
    assert list(limit.tick()) == []
