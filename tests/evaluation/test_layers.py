"""What an env is made of, and what of it stands still while it is evaluated."""

import gymnasium as gym
import numpy as np
import pytest
from evaluation_toys import CoinEnv, evaluate_once, integer_policy
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, RecordEpisodeStatistics, TransformReward
from gymnasium.wrappers import vector as of_vectors

from swath.evaluation.layers import counts_for_all, frozen, is_monitored, layers
from swath.evaluation.request import EvalRequest


class FloatCoin(CoinEnv):
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        return observation.astype(np.float64), info

    def step(self, action):
        observation, *rest = super().step(action)
        return observation.astype(np.float64), *rest


def normalised():
    return NormalizeReward(NormalizeObservation(FloatCoin()))


def test_monitors_are_found_at_any_depth():
    assert not is_monitored(CoinEnv())
    assert is_monitored(gym.wrappers.TimeLimit(RecordEpisodeStatistics(CoinEnv()), 5))
    assert is_monitored(SyncVectorEnv([lambda: RecordEpisodeStatistics(CoinEnv())]))
    assert not counts_for_all(SyncVectorEnv([lambda: RecordEpisodeStatistics(CoinEnv())]))
    assert counts_for_all(of_vectors.RecordEpisodeStatistics(SyncVectorEnv([CoinEnv])))


def statistics_of(env):
    return [layer.obs_rms.mean.tolist() for layer in layers(env) if isinstance(layer, NormalizeObservation)]


def test_running_statistics_stand_still_in_an_evaluation_and_the_flags_are_put_back():
    env = normalised()
    env.update_running_mean = False
    env.reset(seed=1)
    for _ in range(3):
        env.step(0)
    before, reward_before = statistics_of(env), float(env.return_rms.mean)
    first = evaluate_once(lambda obs: (obs[..., 0] > 0).int(), env, EvalRequest(num_trajectories=3))
    second = evaluate_once(lambda obs: (obs[..., 0] > 0).int(), env, EvalRequest(num_trajectories=3))
    assert statistics_of(env) == before
    assert float(env.return_rms.mean) == reward_before
    assert not env.update_running_mean
    assert env.env.update_running_mean
    assert first.returns.tolist() != [0.0] * 3
    assert len(second.returns) == 3


@pytest.mark.parametrize("wrap", [of_vectors.NormalizeObservation, of_vectors.NormalizeReward])
def test_those_of_whole_vector_envs_too(wrap):
    env = wrap(SyncVectorEnv([FloatCoin] * 2))
    with frozen(env):
        assert not env.update_running_mean
    assert env.update_running_mean


def test_envs_in_other_processes_are_frozen_through_their_vector_env():
    env = AsyncVectorEnv([lambda: NormalizeObservation(FloatCoin())] * 2)
    try:
        with frozen(env):
            assert env.get_attr("update_running_mean") == (False, False)
        assert env.get_attr("update_running_mean") == (True, True)
    finally:
        env.close()


def test_monitors_in_other_processes_are_believed_where_they_speak():
    makers = [lambda: TransformReward(RecordEpisodeStatistics(CoinEnv()), lambda r: 0.0)] * 2
    env = AsyncVectorEnv(makers, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    try:
        request = EvalRequest(num_trajectories=6)
        believed = evaluate_once(integer_policy, env, request)
    finally:
        env.close()
    assert believed.returns.tolist() == evaluate_once(integer_policy, CoinEnv, request).returns.tolist()
