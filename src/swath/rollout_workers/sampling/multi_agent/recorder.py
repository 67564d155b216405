"""What came of the actions of agents, written down as transitions of their roles.

reward, not observed    ──▶ unpaid, until the agent is observed
observed                ──▶ its open transition is closed; it acts next, unless it ended
ended, not observed     ──▶ closed with the latest observation
the env's episode over  ──▶ all that is open is closed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from swath.rollout.hosts.multi_agent import ALL, REWARDS, TERMINATEDS, TRUNCATEDS, ByAgent
from swath.rollout_workers.sampling.multi_agent.ledger import TERMINATED, TRUNCATED
from swath.rollout_workers.sampling.multi_agent.progress import Finished, Progress
from swath.rollout_workers.sampling.multi_agent.seats import NO_ROW, Play, Seat, Sight


class Recorder:
    """Writes the transitions of agents.

    Args:
        progress: where steps are counted.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def write(self, play: Play, sight: Sight, answer: Mapping[str, ByAgent]) -> None:
        """Write what a step of an env led to.

        Args:
            play: the episode.
            sight: who was observed.
            answer: what agents were paid and flagged.
        """
        clock = self._progress.clocks[play.env]
        self._progress.clocks[play.env] += 1
        play.tally.step()
        _pay(play, answer[REWARDS])
        ends = _ends(answer[TERMINATEDS], answer[TRUNCATEDS])
        for_all = ends.get(ALL, 0)
        for seat in _concerned(play, sight, ends):
            end = for_all | ends.get(seat.agent, 0)
            if seat.acted != NO_ROW:
                self._close(seat, clock, end)
            if end:
                seat.over = True
                play.tally.mark(seat.agent, terminated=bool(end & TERMINATED), truncated=bool(end & TRUNCATED))
        if for_all:
            finished = Finished(clock + 1, play.tally.env_steps, play.tally.agent_steps)
            self._progress.finished[play.env].append(finished)

    def cut(self, play: Play) -> None:
        """The episode ended with the last transition of each agent, truncated, if that is here; open ones are lost."""
        left = {seat for seat in play.seats.values() if not seat.over}
        for ledger in {seat.role: seat.role.ledger for seat in left}.values():
            for i in range(len(ledger) - 1, -1, -1):
                if ledger.seats[i] in left:
                    left.remove(ledger.seats[i])
                    ledger.ends[i] |= TRUNCATED
        _end(play)

    def discard(self, play: Play) -> int:
        """Forget all that is here of the episode; how many steps of the env were made for it in vain."""
        for ledger in {seat.role: seat.role.ledger for seat in play.seats.values()}.values():
            self._progress.agent_steps -= len(ledger.take(seat.play is play for seat in ledger.seats))
        _end(play)
        start = max(play.begun, self._progress.handed[play.env])
        lost, self._progress.clocks[play.env] = self._progress.clocks[play.env] - start, start
        return lost

    def _close(self, seat: Seat, clock: int, ends: int) -> None:
        raw, clip = float(seat.unpaid), seat.role.equipment.clip
        reward = raw if clip is None else float(clip(np.array(raw)))
        seat.role.ledger.add(seat, clock, reward, ends)
        seat.play.tally.credit(seat.agent, reward, raw)
        self._progress.agent_steps += 1
        seat.before, seat.acted, seat.paid, seat.unpaid = seat.acted, NO_ROW, reward, 0.0


def _pay(play: Play, rewards: ByAgent) -> None:
    """What an agent is paid before it acts for the first time, or after its end, is part of no transition."""
    for agent, reward in rewards.items():
        seat = play.seats.get(agent)
        if seat is not None and seat.acted != NO_ROW:
            seat.unpaid += reward


def _ends(terminateds: ByAgent, truncateds: ByAgent) -> dict[Any, int]:
    """How those ended who are flagged; `ALL` among them."""
    ends = {agent: TERMINATED for agent, flag in terminateds.items() if flag}
    for agent in [agent for agent, flag in truncateds.items() if flag]:
        ends[agent] = ends.get(agent, 0) | TRUNCATED
    return ends


def _concerned(play: Play, sight: Sight, ends: Mapping[Any, int]) -> Iterable[Seat]:
    """Seats whose open transition the step closes."""
    if not ends:
        return sight.seen
    if ALL in ends:
        return [seat for seat in play.seats.values() if not seat.over]
    unseen = [play.seats[agent] for agent in ends if agent in play.seats]
    return dict.fromkeys([*sight.seen, *(seat for seat in unseen if not seat.over)])


def _end(play: Play) -> None:
    for seat in play.seats.values():
        seat.over = True
