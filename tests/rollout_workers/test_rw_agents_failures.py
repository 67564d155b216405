"""What raises while several agents act: whose episode ends, what is still handed out, and how it goes on."""

import gymnasium as gym
import numpy as np
import pytest
from agent_toys import Troupe

from swath.rollout_workers import DefaultCallbacks, MultiAgentEnv

FLAGS = {"__all__": False}


class Walk(MultiAgentEnv):
    """Two agents count steps; what is planned goes wrong, once.

    Args:
        faults: by `(episode, step)`: an exception, or what is returned instead, by place.
    """

    def __init__(self, faults=None, length=6):
        self.agents = [0, 1]
        self.observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.faults, self.length = faults or {}, length
        self.episode, self.resets = -1, 0
        super().__init__()

    def _see(self):
        return {agent: np.array([self.at], np.float32) for agent in self.agents}

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        self.at = 0
        self.episode += 1
        return self._see(), {}

    def step(self, action_dict):
        self.at += 1
        fault = self.faults.pop((self.episode, self.at), {})
        if isinstance(fault, Exception):
            raise fault
        answer = [self._see(), dict.fromkeys(self.agents, 1.0), {"__all__": self.at == self.length}, FLAGS, {}]
        for place, value in fault.items():
            answer[place] = value
        return answer


class Notes(DefaultCallbacks):
    def __init__(self):
        self.ends = []

    def on_episode_end(self, *, episode, env_index, **kwargs):
        self.ends.append((env_index, episode))


BROKE = RuntimeError("broke")
MISSHAPEN = {0: np.zeros(1, np.float32), 1: np.zeros(3, np.float32)}
WAYS = {
    "step": ({(0, 3): BROKE}, RuntimeError, "broke"),
    "shape": ({(0, 3): {0: MISSHAPEN}}, ValueError, "returned an observation of shape"),
    "unknown": ({(0, 3): {0: {9: np.zeros(1, np.float32)}}}, KeyError, "gave 'nobody' for agent 9; there are"),
    "reward": ({(0, 3): {1: {0: 1.0, 1: None}}}, ValueError, "the env returned the reward None of agent 1;"),
    "end": ({(0, 3): {2: {**FLAGS, 1: "no"}}}, ValueError, "the env returned terminateds[1]='no';"),
    "info": ({(0, 3): {4: {1: None}}}, TypeError, "step returned infos[1]=None;"),
}


def by_agent(agent, episode):
    return "default_policy" if agent in (0, 1) else "nobody"


def troupe_of(faults, num_envs=3, **config):
    plans = iter([{}, dict(faults)] + [{}] * 50)
    config = {"rollout_fragment_length": 4, **config}
    return Troupe(lambda: Walk(next(plans)), num_envs, mapping=by_agent, callbacks=Notes(), **config)


def rows(batch, env_rows=8):
    return [batch["obs"][i : i + env_rows, 0].astype(int).tolist() for i in range(0, batch.count, env_rows)]


@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_breaks_is_raised_and_the_next_call_resumes_with_all_others_untouched(way):
    faults, error, text = WAYS[way]
    troupe = troupe_of(faults)
    with pytest.raises(error) as raised:
        troupe.sample()
    assert text in str(raised.value)
    note = "raised by sub-env 1 (last seed None) in step 2 of its episode, counted from 0"
    assert note in raised.value.__notes__
    batch = troupe.sample()
    assert (batch.count, batch.env_steps()) == (24, 12)
    plain, broken = [0, 1, 2, 3] * 2, [0, 1] * 4
    assert rows(batch) == [plain, broken, plain]
    assert batch["truncateds"][8:16].tolist() == [False, True, False, True, False, False, False, False]
    assert troupe.sample().count == 24
    assert [env.resets for env in troupe.made] == [2, 2, 2]
    faulty, *others = troupe.get_metrics()
    assert (faulty.episode_faulty, faulty.env_index) == (True, 1)
    assert text.split(";")[0] in faulty.error
    assert [(told.episode_faulty, told.episode_length) for told in others] == [(False, 6)] * 3
    env, ended = troupe.callbacks.ends[0]
    assert (env, isinstance(ended, error)) == (1, True)


def test_rows_of_an_episode_that_breaks_are_discarded_and_counted_where_episodes_are_handed_out_whole():
    troupe = troupe_of({(0, 3): BROKE}, batch_mode="complete_episodes", rollout_fragment_length=2)
    with pytest.raises(RuntimeError, match="broke"):
        troupe.sample()
    batch = troupe.sample()
    assert rows(batch, 12) == [list(range(6)) * 2] * 2
    assert (batch.env_steps(), troupe.counts["env_steps_discarded"]) == (12, 2)
    later = troupe.sample()
    assert not later["truncateds"].any()
    assert set(later["t"].tolist()) == set(range(6))


def test_an_episode_in_which_nobody_acts_breaks_its_env():
    class Silent(Walk):
        def _see(self):
            return {} if self.episode == 1 else {0: np.zeros(1, np.float32)}

    troupe = Troupe(lambda: Silent(length=3), rollout_fragment_length=3)
    troupe.sample()
    with pytest.raises(ValueError, match="ended after 3 steps in which no agent was observed to act"):
        troupe.sample()
    assert troupe.sample().env_steps() == 3
