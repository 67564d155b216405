"""One env's info out of whatever a host reports."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from swath.rollout.hosts.returned import info_of
from swath.rollout.hosts.vector import VectorHost

PUSH = [np.ones(3, dtype=np.int64)]


def monitored():
    return gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1"))


def lengths_told_at_the_ends(host, skip=()):
    """Push until episodes end; the lengths that the infos tell, beside those that were counted."""
    host.reset_all([3, 14, 15])
    played, told, counted = np.zeros(3, dtype=int), [], []
    for _ in range(40):
        moved = host.step(PUSH)
        played += 1
        played[list(moved.void)] = 0
        ended = [env for env, _, _ in moved.ended]
        for env in range(3):
            episode = info_of(moved.info, env).get("episode")
            assert (episode is not None) == (env in ended)
            if episode is not None:
                told.append(int(episode["l"]))
                counted.append(int(played[env]))
                played[env] = 0
        if ended:
            host.reset(ended, moved.observation)
    return told, counted


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_the_info_at_an_end_is_that_of_the_episode_that_ended_in_every_autoreset_mode(mode):
    host = VectorHost(SyncVectorEnv([monitored] * 3, autoreset_mode=mode))
    told, counted = lengths_told_at_the_ends(host)
    assert told == counted
    assert len(told) > 6


def test_an_env_that_said_nothing_has_an_empty_info_and_unmasked_entries_are_from_everybody():
    infos = {"lives": np.array([3, 2]), "_lives": np.array([True, False]), "player": {"hp": np.array([7, 8])}, "v": "x"}
    assert info_of(infos, 0) == {"lives": 3, "player": {"hp": 7}, "v": "x"}
    assert info_of(infos, 1) == {"player": {"hp": 8}, "v": "x"}
    assert info_of([{"a": 1}, {}], 0) == {"a": 1}
