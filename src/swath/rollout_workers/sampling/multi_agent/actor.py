"""The policies of several agents as the loop's actor: each is asked once per step, for all its agents in all envs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from swath.rollout.hosts.by_agent import ByAgent
from swath.rollout.spaces import Leaves
from swath.rollout_workers.perf_stats import Part
from swath.rollout_workers.sampling.multi_agent.role import Role
from swath.rollout_workers.sampling.multi_agent.seats import Seat, Sight


class AgentsActor:
    """Turns sights into actions by agent.

    Args:
        lap: called when a part of the work is done, with its name.

    Attributes:
        announce: called before policies are asked, for each env in which an episode has begun.
        explore: whether actions are sampled; None: as the settings of each policy say.
        version: of the weights.
    """

    def __init__(self, lap: Callable[[Part], None]) -> None:
        self.announce: Callable[[int], None] | None = None
        self.explore: bool | None = None
        self.version = 0
        self._lap = lap
        self._begun: list[int] = []

    def __call__(self, observation: Leaves) -> Leaves:
        """One leaf: actions by agent, one dict per env. Where one policy raises, no agent has acted."""
        self._lap("env_wait")
        while self._begun:
            env = self._begun.pop(0)
            if self.announce is not None:
                self.announce(env)
        actions: list[ByAgent] = [{} for _ in observation[0]]
        groups = _by_role(observation[0])
        for role, seats in groups.items():
            answered = role.ask(seats, explore=self.explore)
            self._lap("inference")
            for seat, action in zip(seats, role.deal(answered), strict=True):
                actions[seat.play.env][seat.agent] = action
            self._lap("action_processing")
        for seats in groups.values():
            for seat in seats:
                seat.acted, seat.version = seat.row, self.version
        return [actions]

    def begin(self, envs: Sequence[int]) -> None:
        """Episodes begin in these envs; what is remembered of agents is in their seats."""
        self._begun += [env for env in envs if env not in self._begun]

    def rewind(self) -> None:
        """Never asked for: the hosts of rollout workers make no step twice."""
        raise RuntimeError("the steps of a rollout worker are not taken back")


def _by_role(sights: list[Sight]) -> dict[Role, list[Seat]]:
    groups: dict[Role, list[Seat]] = {}
    for sight in sights:
        for seat in sight.due:
            group = groups.get(seat.role)
            if group is None:
                groups[seat.role] = [seat]
            else:
                group.append(seat)
    return groups
