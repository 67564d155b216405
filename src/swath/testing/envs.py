"""Small envs under the names by which users of RLlib know them; what they do is easy to foresee."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from swath.rollout.hosts.gymnasium import ALL, ByAgent, Step
from swath.rollout_workers.hosts.own_vector import VectorEnv
from swath.rollout_workers.multi_agent_env import MultiAgentEnv, make_multi_agent

Options: TypeAlias = dict[str, Any] | None
Begun: TypeAlias = tuple[Any, dict[str, Any]]
Stepped: TypeAlias = tuple[Any, float, bool, bool, dict[str, Any]]


class MockEnv(gym.Env[Any, Any]):
    """Observes 0, pays 1, and is over after some steps, with both flags.

    Args:
        episode_length: those.
        config: kept, for a test to look at.
    """

    def __init__(self, episode_length: int, config: Any = None) -> None:
        self.episode_length = episode_length
        self.config = config
        self.i = 0
        self.observation_space = gym.spaces.Discrete(1)
        self.action_space = gym.spaces.Discrete(2)

    def _now(self) -> tuple[int, float, dict[str, Any]]:
        """Observation, reward and info of the step it is at."""
        return 0, 1.0, {}

    def reset(self, *, seed: int | None = None, options: Options = None) -> Begun:
        """Begin to count."""
        super().reset(seed=seed, options=options)
        self.i = 0
        observation, _, info = self._now()
        return observation, info

    def step(self, action: Any) -> Stepped:  # noqa: ARG002  counted, not read
        """Count one more."""
        self.i += 1
        over = self.i >= self.episode_length
        observation, reward, info = self._now()
        return observation, reward, over, over, info


class MockEnv2(MockEnv):
    """Observes the step it is at, pays 100, and keeps the last seed as `rng_seed`."""

    def __init__(self, episode_length: int) -> None:
        super().__init__(episode_length)
        self.observation_space = gym.spaces.Discrete(episode_length + 1)
        self.rng_seed: int | None = None

    def _now(self) -> tuple[int, float, dict[str, Any]]:
        return self.i, 100.0, {}

    def reset(self, *, seed: int | None = None, options: Options = None) -> Begun:
        """Begin to count; a seed is kept."""
        self.rng_seed = self.rng_seed if seed is None else seed
        return super().reset(seed=seed, options=options)


class MockEnv3(MockEnv):
    """Observes, pays and has in its info the step it is at."""

    def __init__(self, episode_length: int, config: Any = None) -> None:
        super().__init__(episode_length, config)
        self.observation_space = gym.spaces.Discrete(100)

    def _now(self) -> tuple[int, float, dict[str, Any]]:
        return self.i, float(self.i), {"timestep": self.i}


class RandomEnv(gym.Env[Any, Any]):
    """Draws observations and rewards from spaces.

    Args:
        config: `observation_space`, `action_space` (`Discrete(2)`), `reward_space` (a `Box` from -1 to 1),
            `p_terminated` (probability of an end in any step, 0.1), `max_episode_len` (steps until it is truncated,
            None), `check_action_bounds` (actions outside their space are refused, False).
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        config = config or {}
        self.observation_space = config.get("observation_space", gym.spaces.Discrete(2))
        self.action_space = config.get("action_space", gym.spaces.Discrete(2))
        self.reward_space = config.get("reward_space", gym.spaces.Box(-1.0, 1.0, (), np.float32))
        self.p_terminated = config.get("p_terminated", 0.1)
        self.max_episode_len: int | None = config.get("max_episode_len") or None
        self.check_action_bounds = config.get("check_action_bounds", False)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Options = None) -> Begun:
        """Begin an episode; a seed is that of everything drawn from now on."""
        super().reset(seed=seed, options=options)
        if seed is not None:
            self.observation_space.seed(seed)
            self.reward_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Stepped:
        """Draw again.

        Raises:
            ValueError: an action outside its space, where that is checked.
        """
        if self.check_action_bounds and action not in self.action_space:
            raise ValueError(f"Illegal action for {self.action_space}: {action!r}")
        self.steps += 1
        truncated = self.max_episode_len is not None and self.steps >= self.max_episode_len
        terminated = not truncated and bool(self.np_random.random() < self.p_terminated)
        return self.observation_space.sample(), float(self.reward_space.sample()), terminated, truncated, {}


def _columns(rows: Sequence[tuple[Any, ...]]) -> Any:
    return tuple(map(list, zip(*rows, strict=True)))


class VectorizedMockEnv(VectorEnv):
    """Several `MockEnv` of one length."""

    def __init__(self, episode_length: int, num_envs: int) -> None:
        super().__init__(gym.spaces.Discrete(1), gym.spaces.Discrete(2), num_envs)
        self.episode_length = episode_length
        self.envs = [MockEnv(episode_length) for _ in range(num_envs)]

    def vector_reset(self, *, seeds: Any = None, options: Any = None) -> Any:  # noqa: ARG002  there are none
        """Reset all."""
        seeds = seeds or [None] * self.num_envs
        return _columns([env.reset(seed=seed) for env, seed in zip(self.envs, seeds, strict=True)])

    def reset_at(self, index: int | None = None, *, seed: int | None = None, options: Options = None) -> Begun:
        """Reset one."""
        return self.envs[index or 0].reset(seed=seed, options=options)

    def vector_step(self, actions: Sequence[Any]) -> Any:
        """Step all."""
        return _columns([env.step(action) for env, action in zip(self.envs, actions, strict=True)])

    def get_sub_environments(self) -> list[Any]:
        """Those."""
        return list(self.envs)

    def restart_at(self, index: int | None = None) -> None:
        """Make one anew."""
        self.envs[index or 0] = MockEnv(self.episode_length)


class MockVectorEnv(VectorEnv):
    """A CartPole that pretends to be several: each acts in it, one after another; it truncates at `episode_length`."""

    def __init__(self, episode_length: int, mocked_num_envs: int) -> None:
        self.env = gym.make("CartPole-v1")
        super().__init__(self.env.observation_space, self.env.action_space, mocked_num_envs)
        self.episode_len = episode_length
        self.ts = 0

    def vector_reset(self, *, seeds: Any = None, options: Any = None) -> Any:
        """Reset the one, with the first seed and options."""
        obs, info = self.reset_at(0, seed=(seeds or [None])[0], options=(options or [None])[0])
        return [obs] * self.num_envs, [info] * self.num_envs

    def reset_at(self, index: int | None = None, *, seed: int | None = None, options: Options = None) -> Begun:  # noqa: ARG002
        """Reset the one, whichever is asked for."""
        self.ts = 0
        return self.env.reset(seed=seed, options=options)

    def vector_step(self, actions: Sequence[Any]) -> Any:
        """Take the actions in turn; from the one that ends the episode on all see the end."""
        self.ts += 1
        rows: list[tuple[Any, ...]] = []
        for action in actions:
            if not rows or not (rows[-1][2] or rows[-1][3]):
                obs, reward, terminated, truncated, info = self.env.step(action)
                row = (obs, reward, terminated, truncated or self.ts >= self.episode_len, info)
            rows.append(row)
        return _columns(rows)

    def get_sub_environments(self) -> list[Any]:
        """The one, as often as it pretends."""
        return [self.env] * self.num_envs


class BasicMultiAgent(MultiAgentEnv):
    """Agents that all act in every step, each in a `MockEnv` of 25 steps, and end together.

    Args:
        num: how many.

    Attributes:
        envs: by agent.
        resetted: whether it was ever reset.
    """

    def __init__(self, num: int) -> None:
        self.envs: dict[Any, MockEnv] = {agent: MockEnv(25) for agent in range(num)}
        self.agents = list(self.envs)
        self.observation_space = gym.spaces.Discrete(2)
        self.action_space = gym.spaces.Discrete(2)
        self.resetted = False
        self._ended: set[Any] = set()
        super().__init__()

    def reset(self, *, seed: int | None = None, options: Options = None) -> tuple[ByAgent, ByAgent]:
        """Reset every agent's env."""
        super().reset(seed=seed, options=options)
        self.resetted = True
        self._ended.clear()
        begun = {agent: env.reset() for agent, env in self.envs.items()}
        return {agent: obs for agent, (obs, _) in begun.items()}, {agent: info for agent, (_, info) in begun.items()}

    def step(self, action_dict: ByAgent) -> Step:
        """Step the envs of those that act."""
        step: Step = ({}, {}, {}, {}, {})
        for agent, action in action_dict.items():
            for column, value in zip(step, self.envs[agent].step(action), strict=True):
                column[agent] = value
        self._ended |= {agent for agent, over in step[2].items() if over}
        step[2][ALL] = step[3][ALL] = len(self._ended) == len(self.envs)
        return step


class FlexAgentsMultiAgent(BasicMultiAgent):
    """Agents that come while others act, and are taken out without a last observation.

    One is there at the start, and at least one always. An episode is truncated after 50 steps.
    """

    length = 50

    def __init__(self) -> None:
        super().__init__(0)
        self.possible_agents = list(range(1 + self.length))
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Options = None) -> tuple[ByAgent, ByAgent]:
        """Begin with one agent, whose id is 0."""
        self.envs = {0: MockEnv(25)}
        self._steps, self._born = 0, 1
        self.agents = [0]
        return super().reset(seed=seed, options=options)

    def step(self, action_dict: ByAgent) -> Step:
        """Step those that act; now and then one comes, now and then one goes."""
        step = super().step(action_dict)
        obs, _, terminateds, truncateds, infos = step
        self._steps += 1
        for agent in self._ended & self.envs.keys():
            del self.envs[agent]
        if not self.envs or self.np_random.random() < 0.25:
            env = self.envs[self._born] = MockEnv(25)
            obs[self._born], infos[self._born] = env.reset()
            self._born += 1
        if len(self.envs) > 1 and self.np_random.random() < 0.5:
            gone = int(self.np_random.choice(list(self.envs)))
            del self.envs[gone]
            obs.pop(gone, None)
            infos.pop(gone, None)
            terminateds[gone] = True
        self.agents = list(self.envs)
        terminateds[ALL], truncateds[ALL] = False, self._steps >= self.length
        return step


class SometimesZeroAgentsMultiAgent(BasicMultiAgent):
    """Agents of which some are observed in a step, and now and then none; some are paid without being observed.

    An agent has 25 steps, and the episode is over when all have had theirs.
    """

    def __init__(self, num: int = 3) -> None:
        super().__init__(num)

    def reset(self, *, seed: int | None = None, options: Options = None) -> tuple[ByAgent, ByAgent]:
        """Begin with some of the agents."""
        self._unseen, _ = super().reset(seed=seed, options=options)
        return self._shown()

    def step(self, action_dict: ByAgent) -> Step:
        """Step those that act; show some of those that wait, and pay some."""
        obs, rewards, terminateds, truncateds, _ = super().step(action_dict)
        self._unseen |= {agent: seen for agent, seen in obs.items() if agent not in self._ended}
        shown, infos = self._shown()
        rewards |= {agent: float(self.np_random.random()) for agent in self._some()}
        return shown, rewards, terminateds, truncateds, infos

    def _some(self) -> list[Any]:
        waiting = [agent for agent in self.agents if agent not in self._ended]
        return [agent for agent in waiting if self.np_random.random() < 0.5]

    def _shown(self) -> tuple[ByAgent, ByAgent]:
        shown = {agent: self._unseen.pop(agent) for agent in self._some() if agent in self._unseen}
        return shown, {agent: {} for agent in shown}


class RoundRobinMultiAgent(BasicMultiAgent):
    """Agents with episodes of 5 steps: each step shows the next one what came of its last action, a round later.

    An agent sees its end with a reward of 0; the episode is over when all have.

    Args:
        num: how many.
        increment_obs: they observe the step they are at; else 0.
    """

    def __init__(self, num: int, increment_obs: bool = False) -> None:
        super().__init__(num)
        self.envs = {agent: MockEnv2(5) if increment_obs else MockEnv(5) for agent in range(num)}
        self.observation_space = gym.spaces.Discrete(10)
        self._enough = num

    def reset(self, *, seed: int | None = None, options: Options = None) -> tuple[ByAgent, ByAgent]:
        """Begin with agent 0."""
        obs, infos = super().reset(seed=seed, options=options)
        self._last: dict[Any, Stepped] = {agent: (obs[agent], 0.0, False, False, infos[agent]) for agent in obs}
        self._turn = 0
        shown, _, _, _, infos = self.step({})
        return shown, infos

    def step(self, action_dict: ByAgent) -> Step:
        """Let agents act, and show the next its last."""
        if len(self._ended) >= self._enough:
            raise RuntimeError("the episode is over: reset the env before stepping it")
        for acting, action in action_dict.items():
            self._last[acting] = self.envs[acting].step(action)
        agent, self._turn = self._turn, (self._turn + 1) % len(self.envs)
        obs, reward, terminated, truncated, info = self._last[agent]
        if terminated or truncated:
            reward = 0.0
            self._ended.add(agent)
        over = {ALL: len(self._ended) >= self._enough}
        return {agent: obs}, {agent: reward}, {agent: terminated, **over}, {agent: truncated, **over}, {agent: info}


class EarlyDoneMultiAgent(RoundRobinMultiAgent):
    """Two agents, with episodes of 3 and 5 steps; the first that ends takes the other along."""

    def __init__(self) -> None:
        super().__init__(2)
        self.envs[0] = MockEnv(3)
        self._enough = 1


MultiAgentCartPole = make_multi_agent("CartPole-v1")
"""CartPoles that have nothing to do with each other, one per agent."""

RandomMultiAgentEnv = make_multi_agent(RandomEnv)
"""Random envs, one per agent; the config is that of `RandomEnv`."""
