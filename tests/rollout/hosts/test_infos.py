"""One env's info out of whatever a host reports."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from host_contract import play

from swath.rollout.hosts.returned import info_of
from swath.rollout.hosts.vector import VectorHost


def monitored():
    return gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1"))


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_the_info_at_an_end_is_that_of_the_episode_that_ended_in_every_autoreset_mode(mode):
    host = VectorHost(SyncVectorEnv([monitored] * 3, autoreset_mode=mode))
    played, told = np.zeros(3, dtype=int), 0
    for step in play(host, 120, [3, 14, 15]):
        played += 1
        played[list(step.void)] = 0
        ended = [env for env, _, _ in step.ended]
        for env in range(3):
            episode = info_of(step.info, env).get("episode")
            assert (None if episode is None else int(episode["l"])) == (played[env] if env in ended else None)
        played[ended] = 0
        told += len(ended)
    assert told > 6


def test_an_env_that_said_nothing_has_an_empty_info_and_unmasked_entries_are_from_everybody():
    infos = {"lives": np.array([3, 2]), "_lives": np.array([True, False]), "player": {"hp": np.array([7, 8])}, "v": "x"}
    assert info_of(infos, 0) == {"lives": 3, "player": {"hp": 7}, "v": "x"}
    assert info_of(infos, 1) == {"player": {"hp": 8}, "v": "x"}
    assert info_of([{"a": 1}, {}], 0) == {"a": 1}
