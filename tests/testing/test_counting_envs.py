"""Counting envs: what they observe can be read back, episodes are as planned, and misuse is refused."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from hypothesis import given
from hypothesis import strategies as st

from counting_vector import CountingVectorEnv
from swath.rollout.spaces import observation_leaves
from swath.testing import OBSERVATIONS, Counting, CountingEnv, EpisodePlan, Mark, RandomScript, Script, reward_of
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


@pytest.mark.filterwarnings("ignore::UserWarning:gymnasium")
def test_gymnasiums_own_checker_finds_no_fault():
    class Forgetful(CountingEnv):
        """Begins with episode 0 at every seed, as the checker wants it."""

        def reset(self, *, seed=None, options=None):
            if seed is not None:
                self.mark = Mark(self.mark.env, -1, 0)
            return super().reset(seed=seed, options=options)

    counting = Counting(observation=OBSERVATIONS["float64"], script=RandomScript(5, 9))
    gym.register("Counting-v0", entry_point=lambda: Forgetful(0, counting))
    try:
        check_env(gym.make("Counting-v0").unwrapped, skip_render_check=True)
    finally:
        del gym.registry["Counting-v0"]


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
    one, other = CountingEnv(0, counting), CountingEnv(0, counting)
    played = [episode(one, seed=7), *(episode(one) for _ in range(20))]
    assert played == [episode(other, seed=7), *(episode(other) for _ in range(20))]
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


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_the_vector_env_of_our_tests_begins_episodes_in_its_mode(mode):
    env = CountingVectorEnv(2, Counting(script=Script((1, 3), ("terminated",))), autoreset_mode=mode)
    env.reset(seed=5)
    observation, rewards, terminated, _, infos = env.step(np.array([1, 2]))
    assert terminated.tolist() == [True, False]
    assert rewards.tolist() == [reward_of((0, 0, 1), [np.int64(1)]), reward_of((1, 0, 1), [np.int64(2)])]
    at_once = mode is AutoresetMode.SAME_STEP
    assert observation[0].tolist() == ([0, 1, 0] if at_once else [0, 0, 1])
    assert not at_once or infos["final_obs"][0].tolist() == [0, 0, 1]
    if mode is AutoresetMode.DISABLED:
        env.reset(options={"reset_mask": np.array([True, False])})
    observation, rewards, *_ = env.step(np.array([0, 0]))
    assert observation[0].tolist() == [0, 1, 0 if mode is AutoresetMode.NEXT_STEP else 1]
    assert (rewards[0] == 0) == (mode is AutoresetMode.NEXT_STEP)
    assert [each.seeds[0] for each in env.envs] == [5, 6]
