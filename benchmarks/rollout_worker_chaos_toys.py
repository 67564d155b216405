"""What `rollout_worker_chaos.py` is made of: envs that count and toil, alone or two by two, and who acts for whom.

Toiling ─▶ RoomForOne ─▶ a sub-env, or an agent of one ─▶ TellingFilter ─▶ Telling
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gymnasium import spaces

from chaos_toys import COUNTING, ENVS, Diary, Toiling
from swath.rollout_workers import make_multi_agent
from swath.testing.telling import RoomForOne

VERSIONS = replace(COUNTING, action_space=spaces.Discrete(2**31))
"""Any number may be an action."""


@dataclass(frozen=True)
class SubEnvs:
    """Builds the sub-envs of all workers; each worker has the same counting envs in every life.

    Attributes:
        diary: where the first env of a worker writes.
        agents: of a sub-env; 1: it is no env of several agents.
    """

    diary: Diary
    agents: int

    def __call__(self, context: Any) -> Any:
        """The sub-env of a context."""
        first = context.vector_index * self.agents
        made = [self._env(context.worker_index, first + agent) for agent in range(self.agents)]
        if self.agents == 1:
            return made[0]
        left = iter(made)
        return make_multi_agent(lambda _: next(left))({"num_agents": self.agents})

    @property
    def number(self) -> int:
        """Of a worker."""
        return ENVS // self.agents

    def _env(self, worker: int, number: int) -> RoomForOne:
        return RoomForOne(Toiling(worker, number, self.diary, counting=VERSIONS))


@dataclass(frozen=True)
class Mapping:
    """Agents and policies take turns.

    Attributes:
        ids: of policies, one per agent.
    """

    ids: tuple[str, ...]

    def __call__(self, agent: Any, *_: Any, **__: Any) -> str:
        """The policy of an agent; agents are called 0, 1 and so on, a lone one has a name."""
        return self.ids[agent % len(self.ids) if isinstance(agent, int) else 0]
