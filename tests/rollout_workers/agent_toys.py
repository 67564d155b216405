"""Workers whose envs have several agents, and policies whose answers are foreseen, for tests."""

import gymnasium as gym
import numpy as np

from swath.rollout_workers import AlgorithmConfig, MultiAgentEnv, Policy
from swath.rollout_workers.batches.names import views
from swath.rollout_workers.worker.worker import RolloutWorker


def by_parity(agent, episode):
    return f"p{agent % 2}"


class Counter(Policy):
    """Answers 0, 1, 0, 1, … by the row of the call; keeps the observations of each call."""

    wanted = ()

    def __init__(self, observation_space, action_space, config):
        super().__init__(observation_space, action_space, config)
        self.view_requirements = views(*self.wanted)
        self.asked = []

    def compute_actions(self, obs_batch, state_batches=None, **given):
        self.asked.append(np.array(obs_batch))
        n = len(obs_batch)
        return np.arange(n) % 2, [], {"asked": np.full(n, len(self.asked))}


TWO = {"p0": Counter, "p1": Counter}


class Agents(MultiAgentEnv):
    """Agents see their step, and are paid 1; `hook(env, answer)` may change what is returned. Keeps the actions."""

    def __init__(self, num=2, length=5, action_space=None, hook=lambda env, answer: None):
        self.agents, self.length, self.hook = list(range(num)), length, hook
        self.observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
        self.action_space = action_space or gym.spaces.Discrete(3)
        self.episode, self.got = -1, []
        super().__init__()

    def reset(self, *, seed=None, options=None):
        self.at, self.episode = 0, self.episode + 1
        obs, *_, infos = self._answer()
        return obs, infos

    def step(self, action_dict):
        self.got.append(action_dict)
        self.at += 1
        return self._answer()

    def _answer(self):
        seen = {agent: np.float32([self.at]) for agent in self.agents}
        flags = {"__all__": self.at == self.length}, {"__all__": False}
        answer = [seen, dict.fromkeys(self.agents, 1.0), *flags, {}]
        self.hook(self, answer)
        return answer


class Troupe(RolloutWorker):
    """A worker with envs that `make` makes, policies by id and `mapping(agent, episode)`; `built` are all its envs."""

    def __init__(self, make, num_envs=1, policies=None, mapping=None, callbacks=None, **config):
        classes = policies or {"default_policy": Counter}
        settings = AlgorithmConfig().update_from_dict({"num_envs_per_env_runner": num_envs, **config})
        settings.multi_agent(policies={pid: (kind, None, None, {}) for pid, kind in classes.items()})
        if mapping is not None:
            settings.multi_agent(policy_mapping_fn=lambda agent, episode, **kwargs: mapping(agent, episode))
        if callbacks is not None:
            settings.callbacks(lambda: callbacks)
        self.built = []
        super().__init__(env_creator=lambda context: self.built.append(make()) or self.built[-1], config=settings)

    @property
    def made(self):
        return self.envs.view.get_sub_environments()

    @property
    def counts(self):
        return self.envs.counts
