"""The host whose agents have seats: who is seen is told apart by policy, processed with its like, and kept.

    {agent: observation} ──▶ seats ──▶ stacked by role, preprocessed, filtered ──▶ rows of the role
                                                                              ──▶ Sight: who was seen, who acts next

A mapping function that raises, an agent whose observation does not fit, an episode in which nobody ever acted: the env
has failed with that step or reset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from swath.rollout.hosts.base import EnvRaised, Transition
from swath.rollout.hosts.multi_agent import ALL, INFOS, TERMINATEDS, TRUNCATEDS, ByAgent, MultiAgentHost
from swath.rollout.hosts.returned import info_of
from swath.rollout.spaces import Leaves
from swath.rollout_workers.perf_stats import PerfStats
from swath.rollout_workers.sampling.multi_agent.role import Role
from swath.rollout_workers.sampling.multi_agent.seats import Play, Seat, Sight

Seen: TypeAlias = list[tuple[Seat, Any]]
"""Seats, and what their agents observed."""

_BEGUN: dict[str, ByAgent] = {TERMINATEDS: {ALL: False}, TRUNCATEDS: {ALL: False}}
"""The flags of an episode that has just begun."""


class SeatingHost(MultiAgentHost):
    """A host whose observations are sights: one leaf, a list of N. Episodes begin with `reset`.

    Args:
        envs: at least one env.
        plays: the episodes by env, as they are at the moment; whoever has an env reset puts its next one there.
        role_of: the role of a policy id.
        perf: times the steps.
    """

    def __init__(
        self, envs: Sequence[Any], plays: Mapping[int, Play], role_of: Callable[[str], Role], perf: PerfStats
    ) -> None:
        super().__init__(envs)
        self._plays, self._role_of, self._perf = plays, role_of, perf

    def step(self, action: Leaves, only: int | None = None) -> Transition:
        """Advance every env; sights of those that failed mean nothing until their reset."""
        moved = super().step(action, only)
        self._perf.lap("env_wait")
        n, failed, returned = self.spec.num_envs, dict(moved.failed), moved.observation[0]
        stepped = [env for env in range(n) if env not in failed]
        sights = [Sight() for _ in range(n)]
        seen: dict[int, Seen] = {}
        for env in stepped:
            try:
                seen[env] = self._watch(env, returned[env], info_of(moved.info, env), sights[env])
            except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
                failed[env] = error
        self._keep(seen, failed)
        self._perf.lap("raw_obs_processing")
        return Transition([sights], moved.reward, moved.ended, moved.void, list(failed.items()), moved.info)

    def _begin(self, env: int, seed: int | None) -> Leaves:
        self._plays[env].seats.clear()  # of a reset that failed
        returned, sight, failed = super()._begin(env, seed)[0][0], Sight(), dict[int, Exception]()
        try:
            seen = self._watch(env, returned, {**_BEGUN, INFOS: self.info_of(env)}, sight)
        except Exception as error:
            raise EnvRaised(env, error) from error
        self._keep({env: seen}, failed)
        if failed:
            raise EnvRaised(env, failed[env]) from failed[env]
        return [[sight]]

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
                role = self._role_of(play.episode.policy_for(agent))
                seat = play.seats[agent] = Seat(agent, role, play, play.episode.agent_index(agent))
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
        infos = answer[INFOS]
        play.tally.tell(infos)
        for seat in sight.seen:
            seat.info = infos.get(seat.agent, {})
        return seen

    def _keep(self, seen: dict[int, Seen], failed: dict[int, Exception]) -> None:
        """Process what was seen, by role, and keep it; envs whose observations do not fit have failed.

        Where the filter raises, all envs with agents of the role have failed.
        """
        for role, every in _by_role(seen.values()).items():
            group = every
            try:
                processed = role.processed([value for _, value in group])
            except Exception:  # noqa: BLE001  each row is tried alone below
                for seat, value in every:
                    try:
                        role.processed([value])
                    except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
                        failed[seat.play.env] = error
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


def _by_role(seen: Iterable[Seen]) -> dict[Role, Seen]:
    groups: dict[Role, Seen] = {}
    for seats in seen:
        for pair in seats:
            groups.setdefault(pair[0].role, []).append(pair)
    return groups
