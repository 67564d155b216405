"""The host for a list of envs takes wrappers over: stepping is the same as stepping the wrapped env by hand."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import OrderEnforcing, TimeLimit, TransformAction
from host_contract import Dice, play

from swath.rollout.hosts.gymnasium import EnvListHost


def by_hand(env, seed, actions):
    """(observation, reward, terminated, truncated) of each step, and the observation that follows."""
    rows = []
    env.reset(seed=seed)
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        following = env.reset()[0] if terminated or truncated else observation
        rows.append((observation, reward, terminated, truncated, following))
    return rows


MADE = {
    "CartPole": lambda: gym.make("CartPole-v1", max_episode_steps=12),
    "Pendulum": lambda: gym.make("Pendulum-v1", max_episode_steps=7),
    "FrozenLake": lambda: gym.make("FrozenLake-v1", max_episode_steps=5),
    "two limits": lambda: TimeLimit(gym.make("CartPole-v1", max_episode_steps=9), 6),
    "a wrapper inside": lambda: TimeLimit(OrderEnforcing(_shrunk(gym.make("Pendulum-v1").unwrapped)), 5),
    "HalfCheetah": lambda: gym.make("HalfCheetah-v5", max_episode_steps=10),
}


def _shrunk(env):
    return TransformAction(env, lambda action: action / 2, env.action_space)


@pytest.mark.parametrize("name", list(MADE))
def test_stepping_is_the_same_as_stepping_the_wrapped_env_by_hand(name):
    if name == "HalfCheetah":
        pytest.importorskip("mujoco")
    host = EnvListHost([MADE[name]() for _ in range(2)])
    n_steps, seeds = 45, [3, 14]
    dice = Dice(host)
    actions = [dice([])[0] for _ in range(n_steps)]
    steps = list(play(host, n_steps, seeds))
    for env, seed in enumerate(seeds):
        wrapped = MADE[name]()
        dtype = wrapped.action_space.dtype
        rows = by_hand(wrapped, seed, [action[env].astype(dtype) for action in actions])
        for t, (observation, reward, terminated, truncated, following) in enumerate(rows):
            flags = {i: flags for i, *flags in steps[t].ended}.get(env, [False, False])
            np.testing.assert_array_equal(steps[t].next_observation[0][env], np.float32(observation))
            assert np.float32(steps[t].reward[env]) == np.float32(reward)
            assert flags == [bool(terminated), bool(truncated)]
            if t + 1 < n_steps:
                np.testing.assert_array_equal(steps[t + 1].observation[0][env], np.float32(following))
        wrapped.close()
    assert any(step.ended for step in steps)
    host.close()
