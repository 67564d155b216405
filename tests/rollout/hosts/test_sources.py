"""Env sources, and the hosts built from them."""

import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import OrderEnforcing, TimeLimit, TransformAction
from host_contract import Dice, play

from counting_vector import CountingVectorEnv
from swath.rollout.hosts.gymnasium import EnvListHost
from swath.rollout.hosts.results import info_of
from swath.rollout.hosts.sources import Source, build
from swath.rollout.hosts.vector import VectorHost
from swath.testing import Counting, CountingEnv, CountingEnvs, EnvBroke, Fault


def test_atari_without_its_extra_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ImportError, match=r'ale_py is needed for ALE/Pong-v5: pip install "swath\[atari\]"'):
        build(Source("ALE/Pong-v5"))


def test_a_callable_gets_the_keywords_and_nothing_else():
    def make(number, counting):
        return CountingEnv(number, counting)

    host = build(Source(make, {"number": 9, "counting": Counting("discrete")}))
    host.reset_all()
    assert host.env.mark.env == 9
    assert host.spec.observation[0].shape == ()


def test_an_instance_is_used_itself_and_its_copies_are_others():
    env = CountingEnv(4)
    host = build(Source(env, copies=3))
    host.reset_all()
    assert host.env[0] is env
    assert len({id(env) for env in host.env}) == 3
    assert [env.mark.env for env in host.env] == [4, 4, 4]


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (lambda: Source(3), TypeError, "an env source is of type int; it must be a gymnasium id, a callable"),
        (lambda: Source(None), TypeError, "an env source is of type NoneType"),
        (lambda: Source(CountingEnv, copies=0), ValueError, "envs_per_worker=0 must be at least 1"),
        (lambda: Source(CountingEnv, copies=True), ValueError, "envs_per_worker=True is of type bool"),
        (lambda: Source(CountingEnv, copies=0, copies_name="n_envs"), ValueError, "n_envs=0"),
        (lambda: Source(CountingEnv(), {"number": 3}), ValueError, "create_env_kwargs are for a callable or an id"),
        (lambda: Source(CountingVectorEnv(2), copies=3), ValueError, "copies|envs_per_worker=3 .* batched already"),
        (lambda: Source(lambda: None), TypeError, "returned None; it must return a gymnasium env"),
        (lambda: Source(lambda: 3), TypeError, "returned int"),
        (lambda: Source("NoSuchEnv-v0"), gym.error.Error, "NoSuchEnv"),
        (lambda: Source(CountingEnvs(faults={0: [Fault("build_nothing")]})), TypeError, "returned None"),
    ],
)
def test_what_is_no_source_is_an_error(source, error, message):
    with pytest.raises(error, match=message):
        build(source())


def test_an_error_of_the_maker_leaves_as_itself_with_a_note():
    with pytest.raises(EnvBroke) as caught:
        build(Source(CountingEnvs(faults={1: [Fault("raise_at_build")]}), copies=2))
    assert caught.value.__notes__[0].startswith("raised by the env source")
    assert caught.value.__notes__[0].endswith(", env 1")


def monitored():
    return gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1"))


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_the_info_at_an_end_is_that_of_the_episode_that_ended_in_every_autoreset_mode(mode):
    host = VectorHost(SyncVectorEnv([monitored] * 3, autoreset_mode=mode))
    played, n_ends = np.zeros(3, dtype=int), 0
    for step in play(host, 120, [3, 14, 15]):
        played += 1
        played[list(step.void)] = 0
        ended = [env for env, _, _ in step.ends]
        for env in range(3):
            episode = info_of(step.info, env).get("episode")
            assert (None if episode is None else int(episode["l"])) == (played[env] if env in ended else None)
        played[ended] = 0
        n_ends += len(ended)
    assert n_ends > 6


def test_an_env_without_info_has_an_empty_one_and_unmasked_entries_are_from_all_envs():
    infos = {"lives": np.array([3, 2]), "_lives": np.array([True, False]), "player": {"hp": np.array([7, 8])}, "v": "x"}
    assert info_of(infos, 0) == {"lives": 3, "player": {"hp": 7}, "v": "x"}
    assert info_of(infos, 1) == {"player": {"hp": 8}, "v": "x"}
    assert info_of([{"a": 1}, {}], 0) == {"a": 1}


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
            flags = {i: flags for i, *flags in steps[t].ends}.get(env, [False, False])
            np.testing.assert_array_equal(steps[t].next_observation[0][env], np.float32(observation))
            assert np.float32(steps[t].reward[env]) == np.float32(reward)
            assert flags == [bool(terminated), bool(truncated)]
            if t + 1 < n_steps:
                np.testing.assert_array_equal(steps[t + 1].observation[0][env], np.float32(following))
        wrapped.close()
    assert any(step.ends for step in steps)
    host.close()
