"""The host whose agents have seats: who is seen is told apart by policy, processed with its like, and kept.

    {agent: observation} ──▶ seats ──▶ stacked by role, preprocessed, filtered ──▶ rows of the role
                                                                              ──▶ Sight: who was seen, who acts next

A mapping function that raises, an agent whose observation does not fit, an episode in which nobody ever acted: the env
has failed with that step or reset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

from swath.rollout.hosts.base import EnvRaised, Transition
from swath.rollout.hosts.multi_agent import ALL, INFOS, TERMINATEDS, TRUNCATEDS, ByAgent, MultiAgentHost
from swath.rollout.hosts.returned import info_of
from swath.rollout.spaces import Leaves
from swath.rollout_workers.hosts.wrapping import WrappedHost
from swath.rollout_workers.perf_stats import Part
from swath.rollout_workers.sampling.multi_agent.role import Role
from swath.rollout_workers.sampling.multi_agent.seats import Play, Seat, Sight

Seen: TypeAlias = list[tuple[Seat, Any]]
"""Seats, and what their agents observed."""

Failed: TypeAlias = dict[int, Exception]
"""Envs that failed, and why."""


class SeatingHost(WrappedHost):
    """A host whose observations are sights: one leaf, a list of N.

    Args:
        inner: the envs.
        plays: the episodes by env, as they are at the moment; whoever has an env reset puts its next one there.
        role_of: the role of a policy id.
        lap: called when a part of the work is done, with its name.
    """

    def __init__(
        self,
        inner: MultiAgentHost,
        plays: Mapping[int, Play],
        role_of: Callable[[str], Role],
        lap: Callable[[Part], None],
    ) -> None:
        super().__init__(inner)
        self._envs = inner
        self._plays = plays
        self._role_of = role_of
        self._lap = lap

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs."""
        sights = list(onto[0])
        for env, seed in zip(envs, seeds or [None] * len(envs), strict=True):
            sights[env] = self._reset(env, seed)
        return [sights]

    def renew(self, env: int, make: Callable[[], Any]) -> None:
        """Close this env and put what `make` builds in its place."""
        self._envs.renew(env, make)

    def step(self, action: Leaves) -> Transition:
        """Advance every env."""
        moved = self.inner.step(action)
        self._lap("env_wait")
        n, failed, returned = self.spec.num_envs, dict(moved.failed), moved.observation[0]
        stepped = [env for env in range(n) if env not in failed]
        sights = [Sight() for _ in range(n)]
        seen: dict[int, Seen] = {}
        for env in stepped:
            try:
                seen[env] = self._watch(env, returned[env], info_of(moved.info, env), sights[env])
            except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
                failed[env] = error
        self._keep({env: seats for env, seats in seen.items() if env not in failed}, failed)
        for env in failed:
            sights[env] = Sight()
        self._lap("raw_obs_processing")
        ended = moved.ended.without(sorted(failed))
        in_order = sorted(failed.items(), key=itemgetter(0))
        return Transition([sights], moved.reward, ended, moved.void, in_order, moved.info)

    def _reset(self, env: int, seed: int | None) -> Sight:
        play = self._plays[env]
        play.seats.clear()  # of a reset that failed
        returned: ByAgent = self.inner.reset([env], [[{}] * self.spec.num_envs], [seed])[0][env]
        sight, failed = Sight(), dict[int, Exception]()
        try:
            seen = [(self._seat(play, agent), observation) for agent, observation in returned.items()]
        except Exception as error:
            raise EnvRaised(env, error) from error
        self._keep({env: seen}, failed)
        if failed:
            raise EnvRaised(env, failed[env]) from failed[env]
        sight.seen = [seat for seat, _ in seen]
        sight.due = sight.seen.copy()
        self._tell(play, sight, self._envs.info_of(env))
        return sight

    def _watch(self, env: int, returned: ByAgent, answer: Mapping[str, ByAgent], sight: Sight) -> Seen:
        """Find the seats of the agents that an env shows; those that have ended are not looked at any more."""
        play, terminateds, truncateds = self._plays[env], answer[TERMINATEDS], answer[TRUNCATEDS]
        over = terminateds[ALL] or truncateds[ALL]
        seen: Seen = []
        for agent, observation in returned.items():
            ended = over or terminateds.get(agent, False) or truncateds.get(agent, False)
            seat = play.seats.get(agent)
            if seat is None:
                if ended:
                    continue
                seat = self._seat(play, agent)
            elif seat.over:
                continue
            seen.append((seat, observation))
            sight.seen.append(seat)
            if not ended:
                sight.due.append(seat)
        if over and not any(seat.has_acted for seat in play.seats.values()):
            raise ValueError(
                f"the episode ended after {play.tally.env_steps + 1} steps in which no agent was observed to act; "
                "an env with several agents must observe at least one before its end"
            )
        self._tell(play, sight, answer[INFOS])
        return seen

    def _tell(self, play: Play, sight: Sight, infos: Mapping[Any, Any]) -> None:
        play.tally.tell(infos)
        for seat in sight.seen:
            seat.info = infos.get(seat.agent, {})

    def _seat(self, play: Play, agent: Any) -> Seat:
        """The seat of an agent that is new."""
        role = self._role_of(play.episode.policy_for(agent))
        seat = play.seats[agent] = Seat(agent, role, play, play.episode.agent_index(agent))
        return seat

    def _keep(self, seen: dict[int, Seen], failed: Failed) -> None:
        """Process what was seen, by role, and keep it; envs whose observations do not fit have failed.

        Where the filter raises, all envs with agents of the role have failed.
        """
        for role, every in _by_role(seen.values()).items():
            group = every
            try:
                processed = role.processed([value for _, value in group])
            except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
                misfits = {seat.play.env: told for seat, value in group if (told := _misfit(role, value)) is not None}
                failed |= misfits or {seat.play.env: error for seat, _ in group}
                group = [(seat, value) for seat, value in group if seat.play.env not in failed]
                if not group:
                    continue
                processed = role.processed([value for _, value in group])
            try:
                rows = role.keep(processed, len(group))
            except Exception as error:  # noqa: BLE001  likewise
                error.add_note(f"raised by the observation filter of {role.policy_id!r}")
                failed |= {seat.play.env: error for seat, _ in group}
                continue
            for (seat, _), row in zip(group, rows, strict=True):
                seat.row = row


def _misfit(role: Role, observation: Any) -> Exception | None:
    """Why an observation cannot be processed; None if it can."""
    try:
        role.processed([observation])
    except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
        return error
    return None


def _by_role(seen: Iterable[Seen]) -> dict[Role, Seen]:
    groups: dict[Role, Seen] = {}
    for seats in seen:
        for pair in seats:
            role = pair[0].role
            group = groups.get(role)
            if group is None:
                groups[role] = [pair]
            else:
                group.append(pair)
    return groups
