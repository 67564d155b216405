"""Faults as data: they happen at their steps, and lives of workers are distinguished across processes."""

import gymnasium as gym
import numpy as np
import pytest

from swath.testing import ENDLESS, Counting, CountingEnv, CountingEnvs, EnvBroke, Fault, FaultyEnv, Script

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
