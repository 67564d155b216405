"""The roles of a worker's policies, and the episodes in which they are played."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from swath.rollout.hosts.multi_agent import ByAgent
from swath.rollout.spaces import Leaves
from swath.rollout_workers.episode import Episode, SharedTally
from swath.rollout_workers.perf_stats import Part
from swath.rollout_workers.sampling.multi_agent.role import Equipment, Role
from swath.rollout_workers.sampling.multi_agent.seats import Play, Seat, Sight
from swath.rollout_workers.sampling.watching import Scene


class Company:
    """Roles, and the episodes of N envs.

    Args:
        scene: what episodes are told of the worker: its policies and mapping of the moment.
        equipment: what the worker has for one of its policies.
        plays: where the episodes are kept, by env.
        ids: of episodes: those that were never given before.
    """

    def __init__(
        self, scene: Scene, equipment: Callable[[str], Equipment], plays: dict[int, Play], ids: Iterator[int]
    ) -> None:
        self.plays = plays
        self._scene = scene
        self._equipment = equipment
        self._ids = ids
        self._roles: dict[str, Role] = {}

    def begin(self, env: int, clock: int) -> Play:
        """The next episode of an env that has made so many steps."""
        scene, tally = self._scene, SharedTally()
        episode = Episode(
            next(self._ids),
            env,
            tally,
            policy_map=scene.policy_map,
            policy_mapping_fn=scene.mapping(),
            worker=scene.worker,
        )
        episode.has_begun = False
        play = self.plays[env] = Play(env, clock, tally, episode)
        return play

    def role_of(self, policy_id: str) -> Role:
        """The role of a policy, for an agent that is new."""
        role = self._roles.get(policy_id)
        if role is None:
            role = self._roles[policy_id] = Role(self._equipment(policy_id))
        return role

    @property
    def roles(self) -> list[Role]:
        """All that have something to hand out, or may have."""
        return list(self._roles.values())

    @property
    def replaced(self) -> list[Role]:
        """Roles whose policy's id belongs to another policy by now."""
        now = self._scene.policy_map
        return [role for pid, role in self._roles.items() if pid in now and now[pid] is not role.equipment.policy]

    def bound_to(self, role: Role) -> list[Play]:
        """The running episodes in which agents are bound to a role."""
        return [play for play in self.plays.values() if any(seat.role is role for seat in play.seats.values())]

    def forget(self, role: Role) -> None:
        """Begin the role of this policy id anew."""
        del self._roles[role.policy_id]

    def seats(self) -> dict[Role, list[Seat]]:
        """Who is bound to each role, and has not ended."""
        bound: dict[Role, list[Seat]] = {role: [] for role in self._roles.values()}
        for play in self.plays.values():
            for seat in play.seats.values():
                if not seat.over:
                    bound[seat.role].append(seat)
        return bound

    def release(self, bound: Mapping[Role, Collection[Seat]]) -> None:
        """Forget the roles of policies that were removed, once nobody is bound to them and nothing waits."""
        for role, seats in bound.items():
            if not seats and not role.ledger and role.policy_id not in self._scene.policy_map:
                del self._roles[role.policy_id]


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
