"""Small envs like the envs of RLlib's tests, under their names, with predictable data."""

import gymnasium as gym

from swath.rollout.hosts.gymnasium import ALL
from swath.rollout_workers import MultiAgentEnv, VectorEnv, make_multi_agent


class MockEnv(gym.Env):
    """An env with observation 0, reward 1, and an end after some steps with both flags; keeps its config."""

    def __init__(self, episode_length, config=None):
        self.episode_length = episode_length
        self.config = config
        self.i = 0
        self.observation_space = gym.spaces.Discrete(1)
        self.action_space = gym.spaces.Discrete(2)

    def now(self):
        """Return observation, reward and info of the present step."""
        return 0, 1.0, {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.i = 0
        observation, _, info = self.now()
        return observation, info

    def step(self, action):
        self.i += 1
        over = self.i >= self.episode_length
        observation, reward, info = self.now()
        return observation, reward, over, over, info


class MockEnv2(MockEnv):
    """An env that observes its step, with reward 100; keeps its last seed."""

    def __init__(self, episode_length):
        super().__init__(episode_length)
        self.observation_space = gym.spaces.Discrete(episode_length + 1)
        self.rng_seed = None

    def reset(self, *, seed=None, options=None):
        self.rng_seed = self.rng_seed if seed is None else seed
        return super().reset(seed=seed, options=options)

    def now(self):
        return self.i, 100.0, {}


class MockEnv3(MockEnv):
    """An env whose observation, reward and info are its step."""

    def __init__(self, episode_length, config=None):
        super().__init__(episode_length, config)
        self.observation_space = gym.spaces.Discrete(100)

    def now(self):
        return self.i, float(self.i), {"timestep": self.i}


class RandomEnv(gym.Env):
    """An env with random observations and rewards, which may refuse actions outside their space."""

    def __init__(self, config=None):
        config = config or {}
        self.observation_space = gym.spaces.Discrete(2)
        self.action_space = config.get("action_space", gym.spaces.Discrete(2))
        self.p_terminated = config.get("p_terminated", 0.1)
        self.check_action_bounds = config.get("check_action_bounds", False)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return int(self.np_random.integers(2)), {}

    def step(self, action):
        if self.check_action_bounds and action not in self.action_space:
            raise ValueError(f"Illegal action for {self.action_space}: {action!r}")
        terminated = bool(self.np_random.random() < self.p_terminated)
        return int(self.np_random.integers(2)), self.np_random.uniform(-1, 1), terminated, False, {}


def columns(rows):
    return tuple(map(list, zip(*rows, strict=True)))


class VectorizedMockEnv(VectorEnv):
    """Several `MockEnv` of one length."""

    def __init__(self, episode_length, num_envs):
        super().__init__(gym.spaces.Discrete(1), gym.spaces.Discrete(2), num_envs)
        self.episode_length = episode_length
        self.envs = [MockEnv(episode_length) for _ in range(num_envs)]

    def vector_reset(self, *, seeds=None, options=None):
        seeds = seeds or [None] * self.num_envs
        return columns([env.reset(seed=seed) for env, seed in zip(self.envs, seeds, strict=True)])

    def reset_at(self, index=None, *, seed=None, options=None):
        return self.envs[index or 0].reset(seed=seed, options=options)

    def vector_step(self, actions):
        return columns([env.step(action) for env, action in zip(self.envs, actions, strict=True)])

    def get_sub_environments(self):
        return list(self.envs)

    def restart_at(self, index=None):
        self.envs[index or 0] = MockEnv(self.episode_length)


class BasicMultiAgent(MultiAgentEnv):
    """Agents that all act in every step, each in a `MockEnv` of 25 steps, and end together."""

    def __init__(self, num):
        self.envs = {agent: MockEnv(25) for agent in range(num)}
        self.agents = list(self.envs)
        self.observation_space = gym.spaces.Discrete(2)
        self.action_space = gym.spaces.Discrete(2)
        self.ended = set()
        super().__init__()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.ended.clear()
        answers = {agent: env.reset() for agent, env in self.envs.items()}
        return tuple({agent: answer[part] for agent, answer in answers.items()} for part in (0, 1))

    def step(self, action_dict):
        step = ({}, {}, {}, {}, {})
        for agent, action in action_dict.items():
            for column, value in zip(step, self.envs[agent].step(action), strict=True):
                column[agent] = value
        self.ended |= {agent for agent, over in step[2].items() if over}
        step[2][ALL] = step[3][ALL] = len(self.ended) == len(self.envs)
        return step


class FlexAgentsMultiAgent(BasicMultiAgent):
    """Agents that join and leave without a last observation, over 50 steps; one is always present."""

    def __init__(self):
        super().__init__(0)
        self.possible_agents = list(range(51))
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        self.envs = {0: MockEnv(25)}
        self.steps, self.born = 0, 1
        self.agents = [0]
        return super().reset(seed=seed, options=options)

    def step(self, action_dict):
        step = super().step(action_dict)
        obs, _, terminateds, truncateds, infos = step
        self.steps += 1
        for agent in self.ended & self.envs.keys():
            del self.envs[agent]
        if not self.envs or self.np_random.random() < 0.25:
            env = self.envs[self.born] = MockEnv(25)
            obs[self.born], infos[self.born] = env.reset()
            self.born += 1
        if len(self.envs) > 1 and self.np_random.random() < 0.5:
            leaver = int(self.np_random.choice(list(self.envs)))
            del self.envs[leaver]
            obs.pop(leaver, None)
            infos.pop(leaver, None)
            terminateds[leaver] = True
        self.agents = list(self.envs)
        terminateds[ALL], truncateds[ALL] = False, self.steps >= 50
        return step


class SometimesZeroAgentsMultiAgent(BasicMultiAgent):
    """Agents with 25 steps each, of which some, or none, are observed in a step; some get rewards without one."""

    def reset(self, *, seed=None, options=None):
        self.unseen, _ = super().reset(seed=seed, options=options)
        return self.shown()

    def step(self, action_dict):
        obs, rewards, terminateds, truncateds, _ = super().step(action_dict)
        self.unseen |= {agent: value for agent, value in obs.items() if agent not in self.ended}
        shown, infos = self.shown()
        rewards |= {agent: float(self.np_random.random()) for agent in self.some()}
        return shown, rewards, terminateds, truncateds, infos

    def some(self):
        waiting = [agent for agent in self.agents if agent not in self.ended]
        return [agent for agent in waiting if self.np_random.random() < 0.5]

    def shown(self):
        shown = {agent: self.unseen.pop(agent) for agent in self.some() if agent in self.unseen}
        return shown, {agent: {} for agent in shown}


class RoundRobinMultiAgent(BasicMultiAgent):
    """Agents with episodes of 5 steps, in turn: each gets the result of its action one round later.

    An agent observes its end with a reward of 0; the episode is over after the last end. With `increment_obs` agents
    observe their step.
    """

    def __init__(self, num, increment_obs=False):
        super().__init__(num)
        self.envs = {agent: MockEnv2(5) if increment_obs else MockEnv(5) for agent in range(num)}
        self.observation_space = gym.spaces.Discrete(10)
        self.enough = num

    def reset(self, *, seed=None, options=None):
        obs, infos = super().reset(seed=seed, options=options)
        self.last = {agent: (obs[agent], 0.0, False, False, infos[agent]) for agent in obs}
        self.turn = 0
        shown, _, _, _, infos = self.step({})
        return shown, infos

    def step(self, action_dict):
        for acting, action in action_dict.items():
            self.last[acting] = self.envs[acting].step(action)
        agent, self.turn = self.turn, (self.turn + 1) % len(self.envs)
        obs, reward, terminated, truncated, info = self.last[agent]
        if terminated or truncated:
            reward = 0.0
            self.ended.add(agent)
        over = {ALL: len(self.ended) >= self.enough}
        return {agent: obs}, {agent: reward}, {agent: terminated, **over}, {agent: truncated, **over}, {agent: info}


class EarlyDoneMultiAgent(RoundRobinMultiAgent):
    """Two agents, with episodes of 3 and 5 steps; both end with the first."""

    def __init__(self):
        super().__init__(2)
        self.envs[0] = MockEnv(3)
        self.enough = 1


MultiAgentCartPole = make_multi_agent("CartPole-v1")
RandomMultiAgentEnv = make_multi_agent(RandomEnv)
