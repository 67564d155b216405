"""From the transitions of a role to columns: by sub-env, episode, agent and time.

Transitions refer to rows; a column is made by taking these rows, all at once. Then the rows that nobody needs any more
make room: what stays is what open transitions and those that wait refer to.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from swath.rollout.spaces import Array
from swath.rollout_workers.batches.leaves import object_array
from swath.rollout_workers.batches.names import STATE_IN, ColumnNames
from swath.rollout_workers.sampling.chunks import chunk_starts, is_trained
from swath.rollout_workers.sampling.multi_agent.ledger import ROWS, TERMINATED, TRUNCATED, Ledger
from swath.rollout_workers.sampling.multi_agent.role import Role
from swath.rollout_workers.sampling.multi_agent.seats import NO_ROW, Seat


@dataclass(frozen=True)
class Chunks:
    """Rows of a role, a chunk of one agent, episode and version behind the other.

    Attributes:
        columns: by name.
        seats: whose each chunk is.
        starts: the first row of each.
    """

    columns: dict[str, Any]
    seats: list[Seat]
    starts: Array

    @property
    def lengths(self) -> Array:
        """Rows of each chunk."""
        return np.diff(self.starts, append=len(self.columns[ColumnNames.EPS_ID]))


def take_out(role: Role, cuts: Sequence[int]) -> Ledger:
    """The transitions that lie before the cuts; the role keeps the others."""
    ledger = role.ledger
    if not ledger or max(ledger.clocks) < min(cuts):
        return ledger.take_all()
    return ledger.take(clock < cuts[seat.play.env] for seat, clock in zip(ledger.seats, ledger.clocks, strict=True))


def chunks_of(role: Role, taken: Ledger) -> Chunks | None:
    """Columns of these transitions; None if there are none.

    Chunks whose agent was told last, by `training_enabled`, that they are not trained on are left out.
    """
    if not taken:
        return None
    where, versions = _places(taken.seats), np.array(taken.versions)
    order = np.lexsort((np.array(taken.clocks), where.place, where.eps_id, where.env))
    starts = chunk_starts(where.seat[order], versions[order])
    order, starts = _trained(taken, order, starts)
    if not len(order):
        return None
    columns = {
        **_made(role, taken, order),
        ColumnNames.T: taken.column("clocks", order) - where.begun[order],
        ColumnNames.EPS_ID: where.eps_id[order],
        ColumnNames.AGENT_INDEX: where.place[order],
        ColumnNames.POLICY_VERSION: versions[order],
        **_optional(role, taken, order),
    }
    if ColumnNames.ENV_ID in role.wants.kept:
        columns[ColumnNames.ENV_ID] = where.env[order]
    return Chunks(columns, [taken.seats[order[start]] for start in starts], starts)


def let_go(role: Role, seats: Collection[Seat]) -> None:
    """Keep of a role's rows only those that these seats, or transitions that wait, refer to."""
    needed = {row for seat in seats for row in (seat.row, seat.acted, seat.before)}
    needed.update(*(getattr(role.ledger, name) for name in ROWS))
    kept = sorted(needed - {NO_ROW})
    moved = {row: i for i, row in enumerate(kept)} | {NO_ROW: NO_ROW}
    for seat in seats:
        seat.row, seat.acted, seat.before = moved[seat.row], moved[seat.acted], moved[seat.before]
    role.ledger.renumber(moved)
    role.keep_rows(np.array(kept, dtype=np.int64))


class Places(NamedTuple):
    """Where transitions are from, arrays `[n]`.

    Attributes:
        seat: a number of whose they are.
        env: of which env.
        eps_id: of which episode.
        place: of which agent in it.
        begun: how many steps the env had made when the episode began.
    """

    seat: Array
    env: Array
    eps_id: Array
    place: Array
    begun: Array


def _places(seats: Sequence[Seat]) -> Places:
    numbers: dict[Seat, int] = {}
    seat = np.array([numbers.setdefault(each, len(numbers)) for each in seats])
    facts = [(each.play.env, each.play.episode.episode_id, each.index, each.play.begun) for each in numbers]
    return Places(seat, *np.array(facts, dtype=np.int64).T[:, seat])


def _made(role: Role, taken: Ledger, order: Array) -> dict[str, Any]:
    """What the policy saw, answered and got."""
    acted, ends = taken.column("acted", order), taken.column("ends", order)
    return {
        ColumnNames.OBS: role.observations.take(acted),
        ColumnNames.NEXT_OBS: role.observations.take(taken.column("reached", order)),
        **role.answers(acted),
        ColumnNames.REWARDS: taken.column("rewards", order, np.float32),
        ColumnNames.TERMINATEDS: ends & TERMINATED > 0,
        ColumnNames.TRUNCATEDS: ends & TRUNCATED > 0,
    }


def _optional(role: Role, taken: Ledger, order: Array) -> dict[str, Any]:
    """The states before each transition, and what the policy asks for beside."""
    kept, columns = role.wants.kept, dict[str, Any]()
    if role.initial or ColumnNames.PREV_ACTIONS in kept:
        before = taken.column("before", order)
        columns |= {f"{STATE_IN}{i}": state for i, state in enumerate(role.states_at(before))}
        if ColumnNames.PREV_ACTIONS in kept:
            columns[ColumnNames.PREV_ACTIONS] = role.actions_at(before)
    if ColumnNames.PREV_REWARDS in kept:
        columns[ColumnNames.PREV_REWARDS] = taken.column("paid", order, np.float32)
    if ColumnNames.INFOS in kept:
        columns[ColumnNames.INFOS] = object_array([taken.infos[i] for i in order])
    if ColumnNames.AGENT_ID in kept:
        columns[ColumnNames.AGENT_ID] = object_array([taken.seats[i].agent for i in order])
    return columns


def _trained(taken: Ledger, order: Array, starts: Array) -> tuple[Array, Array]:
    """Order and starts without the chunks that are not to be trained on."""
    lengths = np.diff(starts, append=len(order))
    keep = np.array([is_trained(taken.infos[i]) for i in order[starts + lengths - 1]])
    if keep.all():
        return order, starts
    kept = lengths[keep]
    return order[np.repeat(keep, lengths)], np.cumsum(kept) - kept
