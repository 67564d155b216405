"""Counting envs: observations can be decoded, episodes follow their plans, and misuse is refused."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from swath.rollout.spaces import observation_leaves
from swath.testing import OBSERVATIONS, Counting, CountingEnv, EpisodePlan, Mark, RandomScript, Script
from swath.testing.counting import read, write

MARKS = st.builds(Mark, st.integers(0, 255), st.integers(0, 2**16 - 1), st.integers(0, 2**20 - 1))


@given(st.sampled_from(list(OBSERVATIONS)), MARKS)
def test_a_mark_can_be_read_from_every_leaf_of_every_space(name, mark):
    space = OBSERVATIONS[name]
    observation = write(space, mark)
    assert space.contains(observation)
    for leaf in observation_leaves(space):
        value = observation
        for step in leaf.path:
            value = value[step]
        entry = np.broadcast_to(np.asarray(value).astype(leaf.dtype), (2, 3, *leaf.shape))
        assert (read(leaf.space, entry) == np.array(mark)).all()
        assert read(leaf.space, entry).shape == (2, 3, 3)


@pytest.mark.parametrize(
    "space", [spaces.Box(0, 1, (4,)), spaces.Discrete(9), spaces.MultiBinary(3), spaces.Box(0, 255, (2,), np.uint8)]
)
def test_a_space_or_a_mark_that_does_not_fit_is_an_error(space):
    with pytest.raises(ValueError, match="invalid entry in coordinates"):
        write(OBSERVATIONS["vector"], Mark(256, 0, 0))
    with pytest.raises(ValueError, match=r"cannot hold a mark|more dimensions"):
        CountingEnv(0, Counting(observation=space))


def episode(env, seed=None):
    env.reset(seed=seed)
    done, steps = False, 0
    while not done:
        _, _, terminated, truncated, _ = env.step(0)
        done, steps = terminated or truncated, steps + 1
    return steps, terminated, truncated


def test_a_script_says_lengths_and_endings_in_turn_each_env_beginning_with_its_own():
    script = Script((3, 1, 2), ("terminated", "truncated"))
    env = CountingEnv(1, Counting(script=script))
    assert [episode(env) for _ in range(4)] == [(1, False, True), (2, True, False), (3, False, True), (1, True, False)]
    assert script.plan(1, 0) == EpisodePlan(1, "truncated")
    assert EpisodePlan(1, "both").flags == (True, True)


def test_drawn_episodes_follow_from_the_seed():
    counting = Counting(script=RandomScript(2, 6))
    first, second = CountingEnv(0, counting), CountingEnv(0, counting)
    played = [episode(first, seed=7), *(episode(first) for _ in range(20))]
    assert played == [episode(second, seed=7), *(episode(second) for _ in range(20))]
    assert {length for length, *_ in played} <= set(range(2, 7))
    assert len(set(played)) > 4


def test_misuse_is_refused():
    env = CountingEnv(0, Counting(script=Script((1,))))
    with pytest.raises(RuntimeError, match="stepped before a reset"):
        env.step(0)
    env.reset()
    with pytest.raises(TypeError, match=r"got the action 7; Discrete\(3\) wants another"):
        env.step(7)
    env.step(0)
    with pytest.raises(RuntimeError, match="after the end"):
        env.step(0)
