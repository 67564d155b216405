"""Rows that wait: how many steps are missing, and whose rows go next."""

import numpy as np
import pytest

from swath.rollout.buffer import Rows
from swath.rollout_workers.sampling.block import Block
from swath.rollout_workers.sampling.outputs import Layout
from swath.rollout_workers.sampling.waiting import Waiting


def block(n_envs, n_steps, valid=None, ends=()):
    """Steps of which only some are transitions."""
    shape = (n_envs, n_steps)
    rows = Rows([], [], [], np.zeros(shape, np.float32), np.zeros(shape, bool), np.zeros(shape, bool), None)
    if valid is not None:
        rows.valid = np.array(valid, dtype=bool)
    for end in ends:
        rows.terminated[end] = True
    ids = np.repeat(np.arange(n_envs)[:, None], n_steps, axis=1)
    return Block(rows, rows.reward, ids, ids, 0, [], Layout())


def spans(runs):
    """Env, start and stop of each."""
    return [(run.env, run.start, run.stop) for run in runs]


def test_envs_that_were_served_least_often_come_first_then_those_of_lower_number():
    waiting = Waiting(3)
    waiting.add(block(3, 8))
    assert [spans(waiting.take_fragments(1, 4)) for _ in range(6)] == [
        [(env, start, start + 4)] for start in (0, 4) for env in range(3)
    ]
    assert not waiting


def test_several_fragments_of_a_call_are_in_the_order_of_envs():
    waiting = Waiting(2)
    waiting.add(block(2, 6, [[1] * 6, [0, 1, 0, 1, 0, 0]]))
    assert waiting.rows == [6, 2]
    assert spans(waiting.take_fragments(3, 2)) == [(0, 0, 4), (1, 1, 2), (1, 3, 4)]
    assert waiting.rows == [2, 0]


@pytest.mark.parametrize(
    ("rows", "fragments", "length", "steps"),
    [
        ((0, 0), 2, 5, 5),
        ((0, 0), 3, 5, 10),
        ((3, 0), 2, 5, 5),
        ((3, 0), 1, 5, 2),
        ((5, 0), 1, 5, 0),
        ((9, 4), 3, 5, 1),
        ((9, 4), 4, 5, 6),
    ],
)
def test_as_many_steps_are_missing_as_it_takes_if_each_makes_a_row_in_every_env(rows, fragments, length, steps):
    waiting = Waiting(2)
    waiting.add(block(2, 9, [[t < n for t in range(9)] for n in rows]))
    assert waiting.missing(fragments, length) == steps


def test_only_rows_of_episodes_that_are_over_are_taken_whole():
    waiting = Waiting(2)
    waiting.add(block(2, 4, ends=((0, 1), (0, 2))))
    waiting.add(block(2, 4, ends=((1, 0),)))
    assert waiting.finished == [3, 5]
    assert spans(waiting.take_finished()) == [(0, 0, 3), (1, 0, 4), (1, 0, 1)]
    assert waiting.rows == [5, 3]
    assert waiting.finished == [0, 0]


def test_the_latest_rows_of_an_episode_can_be_dropped():
    waiting = Waiting(1)
    first, second = block(1, 3), block(1, 2)
    first.ids[0, 2] = 7
    second.ids[:] = 7
    waiting.add(first)
    waiting.add(second)
    assert waiting.drop_last(0, 9) == 0
    assert waiting.drop_last(0, 7) == 3
    assert waiting.rows == [2]
    assert spans(waiting) == [(0, 0, 2)]


def test_what_is_open_can_be_given_up():
    waiting = Waiting(1)
    waiting.add(block(1, 3, ends=((0, 0),)))
    waiting.add(block(1, 2))
    assert waiting.drop_open(0) == 4
    assert spans(waiting) == [(0, 0, 1)]
    assert waiting.drop_open(0) == 0
