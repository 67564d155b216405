"""Counting envs: observations can be decoded, episodes follow their plans, and misuse is refused."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from swath.rollout.spaces import observation_leaves
from swath.testing import (
    ENDLESS,
    OBSERVATIONS,
    Counting,
    CountingEnv,
    CountingEnvs,
    EnvBroke,
    EpisodePlan,
    Fault,
    FaultyEnv,
    Mark,
    RandomScript,
    Script,
)
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


# ---- faults as data


LONG = Counting(script=Script(lengths=(ENDLESS,)))


def stepped(env, n):
    """Return the numbers of the next n steps that do not raise."""
    successful = []
    for step in range(1, n + 1):
        try:
            env.step(env.action_space.sample())
        except EnvBroke:
            continue
        successful.append(step)
    return successful


@pytest.mark.parametrize(
    ("fault", "successful"),
    [
        (Fault("raise", every=3), [1, 2, 4, 5, 7, 8, 10]),
        (Fault("raise", every=3, times=2), [1, 2, 4, 5, 7, 8, 9, 10]),
        (Fault("raise", step=2), [1, 3, 4, 5, 6, 7, 8, 9, 10]),
        (Fault("raise", step=2, times=3), [1, 5, 6, 7, 8, 9, 10]),
    ],
    ids=str,
)
def test_a_fault_happens_as_often_as_it_should(fault, successful):
    for env in (CountingEnv(0, LONG, [fault]), FaultyEnv(CountingEnv(0, LONG), [fault])):
        env.reset()
        assert stepped(env, 10) == successful


@pytest.mark.parametrize("kind", ["exit", "kill"])
def test_the_process_of_a_test_is_not_ended_by_what_it_plans(kind):
    env = CountingEnvs(LONG, {0: [Fault(kind, step=2)]})()
    env.reset()
    env.step(0)
    with pytest.raises(SystemExit):
        env.step(0)
    env.step(0)


@pytest.mark.parametrize("kind", [CountingEnv, FaultyEnv])
def test_any_env_can_be_made_faulty_and_goes_wrong_once(kind):
    faults = [
        Fault("raise", episode=0, step=2),
        Fault("raise_at_reset", episode=1, times=2),
        Fault("nan", episode=1, step=1),
        Fault("nan_reward", episode=1, step=2),
        Fault("shape", episode=1, step=3),
        Fault("raise_at_close"),
    ]
    cart_pole = kind is FaultyEnv
    env = FaultyEnv(gym.make("CartPole-v1"), faults, number=7) if cart_pole else CountingEnv(7, LONG, faults)
    env.reset(seed=1)
    assert stepped(env, 2) == [1]
    assert env.mark == (7, 0, 1)
    for _ in range(2):
        with pytest.raises(EnvBroke, match="env 7 raised at the reset of episode 1"):
            env.reset()
    env.reset()
    assert np.isnan(env.step(0)[0]).all()
    assert np.isnan(env.step(1)[1])
    size = 4 if cart_pole else 3
    assert env.step(0)[0].shape == (size + 1,)
    assert env.step(1)[0].shape == (size,)
    with pytest.raises(EnvBroke, match="env 7 raised when it was closed"):
        env.close()
    env.close()


def test_a_factory_numbers_its_envs_and_fails_as_planned():
    envs = CountingEnvs(faults={1: [Fault("build_nothing")], 2: [Fault("raise_at_build")]})
    assert envs().mark.env == 0
    assert envs() is None
    with pytest.raises(EnvBroke, match="env 2 could not be built"):
        envs()
    assert envs().mark.env == 3
    assert [env.mark.env for env in envs.made] == [0, 3]
