"""What one process promises: any env source looks like B envs stepped together, any policy acts in it, rows are exact.

Here: storage of a fragment: rows, sparse marks, cuts, and what is blank.
"""

import numpy as np
import pytest

from swath.rollout.buffer import Buffer
from swath.rollout.hosts.base import Ends
from swath.rollout.loop import Step

N_STEPS = 4


ACTION = np.zeros(2, np.int64)


def buffer(output=ACTION):
    return Buffer([np.zeros((2, 3), np.float32)], [output], N_STEPS)


def step(t, *, ended=(), void=(), cut=(), output=None):
    observation = np.full((2, 3), t, dtype=np.float32)
    action = np.array([t, t + 1]) if output is None else output
    return Step(
        [observation], [action], [observation + 1], np.array([t, -t], dtype=np.float64), Ends.listed(ended), void, cut
    )


def written(*steps):
    storage = buffer()
    rows = storage.open()
    for t, each in enumerate(steps):
        storage.write(rows, t, each)
    storage.seal(rows)
    return rows


@pytest.mark.parametrize(("n_envs", "row", "n_steps"), [(1, 3, 4), (128, 3, 1), (128, 3, 4), (128, 100, 4)])
def test_what_was_sealed_is_not_written_again(n_envs, row, n_steps):
    storage = Buffer([np.zeros((n_envs, row), np.float32)], [np.zeros(n_envs, np.int64)], n_steps)
    sealed = []
    for t in range(2):
        rows = storage.open()
        leaf = np.full((n_envs, row), t, dtype=np.float32)
        for at in range(n_steps):
            storage.write(rows, at, Step([leaf], [leaf[:, 0]], [leaf + 1], leaf[:, 0], Ends.listed([]), (), ()))
        storage.seal(rows)
        sealed.append(rows)
    for t, rows in enumerate(sealed):
        arrays = [*rows.observation, *rows.outputs, rows.reward, rows.next_observation[0] - 1]
        assert [set(np.unique(array)) for array in arrays] == [{t}] * 4
        assert all(array.flags.c_contiguous for array in (*rows.observation, *rows.outputs, rows.reward))


def test_a_cut_truncates_the_row_before_unless_its_episode_had_ended_there():
    rows = written(step(0), step(1, cut=[0], ended=[(1, True, False)]), step(2, cut=[1]), step(3))
    assert rows.truncated.tolist() == [[True, False, False, False], [False] * 4]
    assert rows.terminated.tolist() == [[False] * 4, [False, True, False, False]]
    assert list(rows.restarted) == []


@pytest.mark.parametrize("void", [(), (1,)])
def test_the_last_transition_of_each_env_is_cut_where_asked(void):
    rows = written(step(0), step(1), step(2), step(3, void=void, ended=[(0, True, False)]))
    rows.cut_last()
    at = 3 if void == () else 2
    assert np.argwhere(rows.truncated).tolist() == [[1, at]]
