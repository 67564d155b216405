"""An episode as callbacks, mapping functions and policies see it, over the running sums of one agent or of many.

Rows of steps are not kept: an episode of any length takes the same room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from swath.rollout.episodes.statistics import EpisodeSums
from swath.rollout.hosts.base import Ends, Infos
from swath.rollout.hosts.returned import info_of
from swath.rollout.spaces import Array

LONE_AGENT = "agent0"
"""The agent of an env that knows of none."""

MappingFn = Callable[..., str]
"""`f(agent_id, episode, worker=worker)`: the id of the policy that acts for the agent."""


class Board:
    """The running episodes of B envs of one agent each.

    Attributes:
        sums: of rewards after clipping, and as the env gave them.
        handed: int64 `[B]`, how many of the episode's steps were handed out.
        terminated, truncated: bool `[B]`, how the last step ended it, if it did.
        infos: what the envs said beside the last step, as the host gave it.
    """

    def __init__(self, num_envs: int) -> None:
        self.sums = EpisodeSums(num_envs, 2)
        self.handed = np.zeros(num_envs, dtype=np.int64)
        self.terminated, self.truncated = np.zeros((2, num_envs), dtype=np.bool_)
        self.infos: Infos = ()
        self._first_infos: dict[int, Mapping[str, Any]] = {}

    def step(self, reward: Array, raw_reward: Array, infos: Infos, *, but: Sequence[int] = ()) -> None:
        """Count a step of each env.

        Args:
            reward: after clipping, `[B]`.
            raw_reward: as the env gave it, `[B]`.
            infos: what the envs said beside.
            but: envs that made no transition.
        """
        self.sums.count_step(reward, raw_reward, void=but)
        self.infos = infos
        if self._first_infos:
            self._first_infos = {env: self._first_infos[env] for env in but if env in self._first_infos}

    def end(self, ended: Ends) -> None:
        """Note which episodes ended with the last step."""
        self.terminated[ended.envs], self.truncated[ended.envs] = ended.terminated, ended.truncated

    def begin(self, first_infos: Mapping[int, Mapping[str, Any]]) -> None:
        """Begin anew for these envs, each with what it said when it was reset."""
        self._first_infos |= first_infos
        rows = list(first_infos)
        self.sums.begin(rows)
        self.handed[rows] = self.terminated[rows] = self.truncated[rows] = 0

    def info(self, env: int) -> Mapping[str, Any] | None:
        """What an env said last in the running episode; None before its reset."""
        first = self._first_infos.get(env)
        return info_of(self.infos, env) if first is None and self.sums.lengths[env] else first

    def hand_out(self) -> None:
        """All steps up to now are handed out."""
        self.handed[:] = self.sums.lengths

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
        kept.sums.returns[:, 0], kept.sums.lengths[0] = self._board.sums.returns[:, env], self.env_steps
        for name in ("handed", "terminated", "truncated"):
            getattr(kept, name)[0] = getattr(self._board, name)[env]
        kept.infos = [self._board.info(env) or {}]
        self._board, self._env = kept, 0

    @property
    def env_steps(self) -> int:
        """Steps of the env."""
        return int(self._board.sums.lengths[self._env])

    agent_steps = env_steps

    @property
    def active_env_steps(self) -> int:
        """Steps of the env that were not handed out yet."""
        return self.env_steps - int(self._board.handed[self._env])

    active_agent_steps = active_env_steps

    @property
    def rewards(self) -> Mapping[Any, float]:
        """The sum of the agent's rewards, after clipping, once it has made a transition."""
        return {LONE_AGENT: float(self._board.sums.returns[0, self._env])} if self.env_steps else {}

    @property
    def raw_reward(self) -> float:
        """The sum of rewards as the env gave them."""
        return float(self._board.sums.returns[1, self._env])

    @property
    def ends(self) -> Mapping[Any, tuple[bool, bool]]:
        """Whether the last step led to an end state, and whether it was cut off with it, by agent."""
        return {LONE_AGENT: (bool(self._board.terminated[self._env]), bool(self._board.truncated[self._env]))}

    @property
    def infos(self) -> Mapping[Any, Mapping[str, Any]]:
        """What the env said in its last step, before the first one in its reset, by agent."""
        info = self._board.info(self._env)
        return {} if info is None else {LONE_AGENT: info}


class SharedTally:
    """What is counted of an episode of many agents; the same attributes as those of one agent."""

    def __init__(self) -> None:
        self.env_steps = 0
        self.agent_steps = 0
        self.active_env_steps = 0
        self.active_agent_steps = 0
        self.rewards: dict[Any, float] = {}
        self.raw_reward = 0.0
        self.ends: dict[Any, tuple[bool, bool]] = {}
        self.infos: dict[Any, Mapping[str, Any]] = {}

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
        self.ends[agent] = (bool(terminated), bool(truncated))

    def tell(self, infos: Mapping[Any, Mapping[str, Any]]) -> None:
        """Note what the env said beside to agents."""
        self.infos.update(infos)

    def hand_out(self) -> None:
        """All transitions up to now are handed out."""
        self.active_env_steps = self.active_agent_steps = 0


EpisodeTally: TypeAlias = LoneTally | SharedTally
"""What is counted of one episode."""


class Episode:
    """One episode of one sub-env: who acts in it by which policy, and its running sums, current whenever read.

    Args:
        episode_id: unique over workers and lives.
        env_id: the sub-env, by its number within the worker.
        tally: what is counted of it.
        policy_map: the policies by id.
        policy_mapping_fn: asked once per agent; what it answers holds for the episode.
        worker: the worker in which it runs.

    Attributes:
        custom_metrics: numbers to be told with the episode, by name.
        user_data: whatever callbacks want to keep until its end.
        hist_data: lists of numbers to be told with the episode, by name.
        media: whatever else is to be told with it.
        has_begun: whether the sub-env was reset; that is yet to come when `on_episode_created` is called.
    """

    def __init__(
        self,
        episode_id: int,
        env_id: int,
        tally: EpisodeTally,
        *,
        policy_map: Mapping[str, Any],
        policy_mapping_fn: MappingFn,
        worker: Any = None,
    ) -> None:
        self.episode_id = episode_id
        self.env_id = env_id
        self.tally = tally
        self.policy_map = policy_map
        self.policy_mapping_fn = policy_mapping_fn
        self.worker = worker
        self.custom_metrics: dict[str, Any] = {}
        self.user_data: dict[str, Any] = {}
        self.hist_data: dict[str, list[Any]] = {}
        self.media: dict[str, Any] = {}
        self.has_begun = True
        self._policies: dict[Any, str] = {}
        self._indices: dict[Any, int] = {}

    @property
    def length(self) -> int:
        """Env steps made; -1 before the reset."""
        return self.tally.env_steps if self.has_begun else -1

    @property
    def total_env_steps(self) -> int:
        """Env steps made."""
        return self.tally.env_steps

    @property
    def total_agent_steps(self) -> int:
        """Transitions of all agents."""
        return self.tally.agent_steps

    @property
    def active_env_steps(self) -> int:
        """Env steps that were not handed out in a batch yet."""
        return self.tally.active_env_steps

    @property
    def active_agent_steps(self) -> int:
        """Transitions that were not handed out in a batch yet."""
        return self.tally.active_agent_steps

    @property
    def total_reward(self) -> float:
        """The sum over all agents and steps, after reward clipping."""
        return sum(self.tally.rewards.values(), 0.0)

    @property
    def agent_rewards(self) -> dict[tuple[Any, str], float]:
        """The sum of rewards by (agent, policy), of agents that have made a transition."""
        return {(agent, self.policy_for(agent)): reward for agent, reward in self.tally.rewards.items()}

    def policy_for(self, agent_id: Any = LONE_AGENT) -> str:
        """The id of the policy that acts for this agent in this episode, also if it was removed meanwhile.

        Raises:
            KeyError: the mapping function answered with an id that no policy has.
        """
        if agent_id not in self._policies:
            self._policies[agent_id] = self._asked_for(agent_id)
        return self._policies[agent_id]

    def get_agents(self) -> list[Any]:
        """The agents that have appeared, in that order."""
        return list(self._indices)

    def agent_index(self, agent_id: Any) -> int:
        """The agent's place in the order of appearance; one that is new has just appeared."""
        return self._indices.setdefault(agent_id, len(self._indices))

    def is_terminated(self, agent_id: Any = LONE_AGENT) -> bool:
        """Whether the agent's last transition led to an end state."""
        return self.tally.ends.get(agent_id, (False, False))[0]

    def is_truncated(self, agent_id: Any = LONE_AGENT) -> bool:
        """Whether the agent was cut off with its last transition."""
        return self.tally.ends.get(agent_id, (False, False))[1]

    def is_done(self, agent_id: Any = LONE_AGENT) -> bool:
        """Whether the agent's last transition was the last one."""
        return self.is_terminated(agent_id) or self.is_truncated(agent_id)

    def last_info_for(self, agent_id: Any = LONE_AGENT) -> Mapping[str, Any] | None:
        """What the env last said beside to the agent; None if it said nothing yet."""
        return self.tally.infos.get(agent_id)

    def __repr__(self) -> str:
        return (
            f"<Episode {self.episode_id} of env {self.env_id}: {self.length} steps, "
            f"{len(self._indices)} agents, reward {self.total_reward:.6g}>"
        )

    def _asked_for(self, agent_id: Any) -> str:
        policy_id = self.policy_mapping_fn(agent_id, self, worker=self.worker)
        if policy_id not in self.policy_map:
            raise KeyError(
                f"policy_mapping_fn gave {policy_id!r} for agent {agent_id!r}; there are {sorted(self.policy_map)}"
            )
        return policy_id
