"""Stable-Baselines3's `VecEnv`, by a stand-in with its interface, without that package."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from swath.evaluation.env_parts import changes_rewards, is_monitor, layers, names_of_layers
from swath.evaluators import evaluate_policy
from swath.rollout.hosts.base import EnvRaised
from swath.rollout.hosts.vector import AsVectorEnv, VectorHost


def of_the_package(name, *bases):
    """Give a class the module name of that package."""

    def mark(kind):
        return type(name, (kind, *bases), {"__module__": "stable_baselines3.common.stand_in"})

    return mark


class Count(gym.Env):
    """Episodes whose length follows from the seed; observes the remaining steps."""

    observation_space = spaces.Dict(left=spaces.Box(0, 100, (1,), np.int64))
    action_space = spaces.Discrete(5)
    render_mode = "rgb_array"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(2, 9))
        return {"left": np.array([self.left])}, {}

    def step(self, action):
        if self.left == 99:
            raise KeyError("gone")
        self.left -= 1
        return {"left": np.array([self.left])}, float(action), self.left == 0, False, {}

    def render(self):
        return np.full((2, 2, 3), self.left, dtype=np.uint8)


@of_the_package("Monitor")
class Monitor(gym.Wrapper):
    def reset(self, **kwargs):
        self.rewards = []
        return self.env.reset(**kwargs)

    def step(self, action):
        *answer, info = self.env.step(action)
        self.rewards.append(answer[1])
        if answer[2] or answer[3]:
            info["episode"] = {"r": sum(self.rewards), "l": len(self.rewards), "t": 0.0}
        return *answer, info


@of_the_package("VecEnv")
class VecEnv:
    """The interface."""


@of_the_package("DummyVecEnv")
class DummyVecEnv(VecEnv):
    """Several envs in turn, with the automatic reset and the infos of that package."""

    render_mode = "rgb_array"

    def __init__(self, makers):
        self.envs = [make() for make in makers]
        self.num_envs = len(self.envs)
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space
        self.seeds, self.closes = [None] * self.num_envs, 0

    def seed(self, seed):
        self.seeds = [seed + i for i in range(self.num_envs)]

    def reset(self):
        rows = [env.reset(seed=seed)[0] for env, seed in zip(self.envs, self.seeds, strict=True)]
        self.seeds = [None] * self.num_envs
        return self._batch(rows)

    def step(self, actions):
        rows, rewards, dones, infos = [], [], [], []
        for env, action in zip(self.envs, actions, strict=True):
            row, reward, terminated, truncated, info = env.step(action)
            info["TimeLimit.truncated"] = truncated and not terminated
            if terminated or truncated:
                info["terminal_observation"] = row
                row, _ = env.reset()
            rows.append(row), rewards.append(reward), dones.append(terminated or truncated), infos.append(info)
        return self._batch(rows), np.array(rewards, dtype=np.float32), np.array(dones), infos

    def _batch(self, rows):
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def get_images(self):
        return [env.render() for env in self.envs]

    def close(self):
        self.closes += 1


@of_the_package("VecNormalize")
class VecNormalize(VecEnv):
    def __init__(self, venv, norm_reward=True):
        self.venv, self.norm_reward, self.training, self.seen = venv, norm_reward, True, []
        for name in ("num_envs", "observation_space", "action_space"):
            setattr(self, name, getattr(venv, name))

    def seed(self, seed):
        self.venv.seed(seed)

    def reset(self):
        return self.venv.reset()

    def step(self, actions):
        self.seen.append(self.training)
        return self.venv.step(actions)


class Two:
    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        assert observation["left"].shape[1:] == (1,)
        return np.full(len(observation["left"]), 2), None


def test_a_step_to_the_end_leads_to_the_true_last_observation_and_the_next_begins_with_that_of_the_reset():
    host = VectorHost(AsVectorEnv(DummyVecEnv([Count, Count])))
    (remaining,) = host.reset_all([5, 5])
    first = int(remaining.min())
    for t in range(first):
        transition = host.step([np.array([2, 2])])
        assert transition.observation[0].tolist() == (remaining - t - 1).tolist()
        assert bool(transition.ends.envs.size) == (t == first - 1)
    assert list(transition.ends) == [(int(env), True, False) for env in np.flatnonzero(remaining[:, 0] == first)]
    env = transition.ends.envs[0]
    observation = host.reset([env], transition.observation)
    assert observation[0][env, 0] == host.env.envs[env].left > 0
    assert transition.observation[0][env, 0] == 0
    with pytest.raises(EnvRaised) as caught:
        host.reset([1 - env], transition.observation)
    assert "cannot reset envs" in str(caught.value.cause)


@pytest.mark.parametrize("max_steps", [None, 3])
def test_evaluate_policy_takes_it_seeded_as_a_whole_and_leaves_it_open(max_steps):
    env = DummyVecEnv([Count] * 3)
    first = evaluate_policy(Two(), env, 8, return_episode_rewards=True, max_steps=max_steps)
    assert first == evaluate_policy(Two(), env, 8, return_episode_rewards=True, max_steps=max_steps)
    returns, lengths = first
    assert returns == [2.0 * length for length in lengths]
    assert max(lengths) == (max_steps or max(lengths))
    assert env.closes == 0
    with pytest.raises(ValueError, match="num_envs=2"):
        evaluate_policy(Two(), env, num_envs=2)


def test_monitors_reward_changers_and_statistics_are_found_through_wrappers():
    env = VecNormalize(DummyVecEnv([lambda: Monitor(Count())] * 2))
    assert [type(layer).__name__ for layer in layers(env)][:3] == ["VecNormalize", "DummyVecEnv", "Monitor"]
    assert names_of_layers(env, is_monitor)
    assert names_of_layers(env, changes_rewards) == ["VecNormalize"]
    assert names_of_layers(VecNormalize(DummyVecEnv([Count]), norm_reward=False), changes_rewards) == []
    returns, lengths = evaluate_policy(Two(), env, 6, return_episode_rewards=True)
    assert returns == [2.0 * length for length in lengths]
    assert set(env.seen) == {False}
    assert env.training
