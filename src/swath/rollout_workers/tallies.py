"""The running sums of episodes: of all single-agent envs of a worker in arrays, or of one episode of many agents.

Rows of steps are not kept: an episode of any length takes the same room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from swath.rollout.hosts.base import Ended, Infos
from swath.rollout.hosts.infos import info_of
from swath.rollout.spaces import Array

LONE_AGENT = "agent0"
"""The agent of an env that knows of none."""


class Board:
    """The tallies of B envs of one agent each, kept by array functions.

    Attributes, arrays `[B]`:
        steps: of the running episode.
        active: those of them that were not handed out yet.
        reward: sum of rewards after clipping, float64.
        raw_reward: sum of rewards as the env gave them, float64.
        terminated, truncated: how the last step ended it, if it did.
        infos: what the envs said beside the last step, as the host gave it.
    """

    def __init__(self, num_envs: int) -> None:
        self.steps, self.active = np.zeros((2, num_envs), dtype=np.int64)
        self.reward, self.raw_reward = np.zeros((2, num_envs))
        self.terminated, self.truncated = np.zeros((2, num_envs), dtype=np.bool_)
        self.infos: Infos = ()

    def step(self, reward: Array, raw_reward: Array, infos: Infos, *, but: Sequence[int] = ()) -> None:
        """Count a step of each env.

        Args:
            reward: after clipping, `[B]`.
            raw_reward: as the env gave it, `[B]`.
            infos: what the envs said beside.
            but: envs that made no transition.
        """
        moved: Array | slice = slice(None)
        if but:
            moved = np.ones(len(self.steps), dtype=np.bool_)
            moved[list(but)] = False
        self.steps[moved] += 1
        self.active[moved] += 1
        self.reward[moved] += reward[moved]
        self.raw_reward[moved] += raw_reward[moved]
        self.infos = infos

    def end(self, ended: Sequence[Ended]) -> None:
        """Note which episodes ended with the last step."""
        for env, terminated, truncated in ended:
            self.terminated[env], self.truncated[env] = terminated, truncated

    def begin(self, envs: Sequence[int]) -> None:
        """Begin anew for these envs."""
        rows = list(envs)
        for array in (self.steps, self.active, self.reward, self.raw_reward, self.terminated, self.truncated):
            array[rows] = 0

    def hand_out(self) -> None:
        """All steps up to now are handed out."""
        self.active[:] = 0

    def of(self, env: int) -> LoneTally:
        """What is counted of one env's episode, now and later."""
        return LoneTally(self, env)


class LoneTally:
    """One env's row of a board: current whenever it is read, until `keep`."""

    def __init__(self, board: Board, env: int) -> None:
        self._board = board
        self._env = env

    def keep(self) -> None:
        """Hold on to what is counted by now: the row is about to begin anew."""
        kept, env = Board(1), self._env
        for name in ("steps", "active", "reward", "raw_reward", "terminated", "truncated"):
            getattr(kept, name)[0] = getattr(self._board, name)[env]
        kept.infos = [info_of(self._board.infos, env)]
        self._board, self._env = kept, 0

    @property
    def env_steps(self) -> int:
        """Steps of the env."""
        return int(self._board.steps[self._env])

    agent_steps = env_steps

    @property
    def active_env_steps(self) -> int:
        """Steps of the env that were not handed out yet."""
        return int(self._board.active[self._env])

    active_agent_steps = active_env_steps

    @property
    def rewards(self) -> Mapping[Any, float]:
        """The sum of the agent's rewards, after clipping, once it has made a transition."""
        return {LONE_AGENT: float(self._board.reward[self._env])} if self.env_steps else {}

    @property
    def raw_reward(self) -> float:
        """The sum of rewards as the env gave them."""
        return float(self._board.raw_reward[self._env])

    def terminated(self, agent: Any) -> bool:
        """Whether the last step led to an end state."""
        return agent == LONE_AGENT and bool(self._board.terminated[self._env])

    def truncated(self, agent: Any) -> bool:
        """Whether the episode was cut off with the last step."""
        return agent == LONE_AGENT and bool(self._board.truncated[self._env])

    def info(self, agent: Any) -> Mapping[str, Any] | None:
        """What the env said beside its last step; None before the first."""
        return info_of(self._board.infos, self._env) if agent == LONE_AGENT and self.env_steps else None


class SharedTally:
    """What is counted of an episode of many agents."""

    def __init__(self) -> None:
        self.env_steps = 0
        self.agent_steps = 0
        self.active_env_steps = 0
        self.active_agent_steps = 0
        self.rewards: dict[Any, float] = {}
        self.raw_reward = 0.0
        self._ends: dict[Any, tuple[bool, bool]] = {}
        self._infos: dict[Any, Mapping[str, Any]] = {}

    def step(self) -> None:
        """Count a step of the env."""
        self.env_steps += 1
        self.active_env_steps += 1

    def credit(self, agent: Any, reward: float, raw_reward: float) -> None:
        """Count a transition of an agent, with its reward after and before clipping."""
        self.agent_steps += 1
        self.active_agent_steps += 1
        self.rewards[agent] = self.rewards.get(agent, 0.0) + reward
        self.raw_reward += raw_reward

    def mark(self, agent: Any, *, terminated: bool, truncated: bool) -> None:
        """Note how an agent's transition ended, if it did."""
        self._ends[agent] = (bool(terminated), bool(truncated))

    def tell(self, infos: Mapping[Any, Mapping[str, Any]]) -> None:
        """Note what the env said beside to agents."""
        self._infos.update(infos)

    def hand_out(self) -> None:
        """All transitions up to now are handed out."""
        self.active_env_steps = self.active_agent_steps = 0

    def terminated(self, agent: Any) -> bool:
        """Whether the agent's last transition led to an end state."""
        return self._ends.get(agent, (False, False))[0]

    def truncated(self, agent: Any) -> bool:
        """Whether the agent was cut off with its last transition."""
        return self._ends.get(agent, (False, False))[1]

    def info(self, agent: Any) -> Mapping[str, Any] | None:
        """What the env last said beside to this agent; None if it said nothing."""
        return self._infos.get(agent)


EpisodeTally: TypeAlias = LoneTally | SharedTally
"""What is counted of one episode."""
