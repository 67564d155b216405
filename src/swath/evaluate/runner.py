"""Plays whole episodes with one host and one policy, each counted once, from its own reset to its own end.

quota ──▶ begin(slots, seeds) ──▶ steps() ──▶ Step ──▶ ledger ──▶ complete? ──▶ row of the result
  ▲                                                                  │
  └─────────────────── what the slot plays next ◀────────────────────┘
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic

import torch

from swath.errors import WorkerLate, warn_of_no_effect
from swath.evaluate.ledger import Booked, Ledger
from swath.evaluate.limit import EpisodeLimit
from swath.evaluate.quota import Quota
from swath.evaluate.record import NO_SEED, Episodes
from swath.evaluate.request import EvalRequest
from swath.evaluate.scoring import Score, Scoring, own_sums
from swath.evaluate.statistics import generator, mean_interval
from swath.evaluate.stopping import Stopped
from swath.evaluate.watching import Scene, Watcher
from swath.rollout.hosts.base import ArrayHost, EnvRaised
from swath.rollout.hosts.specs import Seeding
from swath.rollout.loop import Actor, Rules, Stage, Step, never_forgive, steps
from swath.rollout.spaces import Leaves
from swath.seeds import derive

EpisodeOf = Callable[[int], int | None]
"""The number of the episode that a slot plays."""

Bind = Callable[[Leaves, EpisodeOf], Actor]
"""Makes the policy fit the host, given the observation of the first reset."""


@dataclass(frozen=True)
class Manner:
    """What varies with the envs and the caller.

    Attributes:
        scoring: says when an episode is complete and what it earned.
        together: the envs begin their episodes only all at once: they play in waves, early finishers idle.
        watchers: who is shown the steps.
    """

    scoring: Scoring = own_sums
    together: bool = False
    watchers: Sequence[Watcher] = ()


@dataclass(frozen=True)
class Played:
    """What came of a run.

    Attributes:
        episodes: the complete episodes, in order.
        seconds: from the first reset to the last end; of several rounds the sum.
        seeding: how far seeds reached.
        stopped: why there are no more episodes.
    """

    episodes: Episodes
    seconds: float
    seeding: Seeding
    stopped: Stopped


class Runner:
    """One evaluation: used once, by one thread. It neither builds nor closes anything.

    Args:
        host: the envs; all are reset first.
        bind: makes the policy, once the first observation is there.
        request: how many episodes, under which conditions.
        manner: what varies with the envs and the caller.
    """

    def __init__(self, host: ArrayHost, bind: Bind, request: EvalRequest, manner: Manner | None = None) -> None:
        n = host.spec.num_envs
        self._host, self._bind, self._request = host, bind, request
        self._manner = manner or Manner()
        self._seeding = _seeding(host, request.seed)
        self._ledger = Ledger(n)
        self._limit = EpisodeLimit(request.limits.max_steps, self._ledger.lengths)
        self._rules = Rules(self._limit, self._begin, never_forgive)
        self._policy: Actor | None = None
        self._quota = Quota(range(0), n)
        self._playing: list[int | None] = [None] * n
        self._within: set[int] = set()  # slots whose env ended, but whose episode goes on
        self._deadline = math.inf

    def play(self) -> Played:
        """Play rounds of episodes until the request has enough.

        Raises:
            WorkerLate: the time is over; checked before each step.
            Exception: what the env, the policy or a watcher raised, as its own type; a note says where.
        """
        self._deadline = monotonic() + self._request.limits.timeout_s
        rule, stopped, seconds = self._request.stop, None, 0.0
        while stopped is None:
            first, began = len(self._ledger), monotonic()
            self._play_round(Quota(range(first, first + rule.num_trajectories), len(self._playing)))
            seconds += monotonic() - began
            interval = mean_interval(self._ledger.returns_so_far(), generator(self._request.seed))
            stopped = rule.verdict(len(self._ledger), interval)
        return Played(self._ledger.episodes(), seconds, self._seeding, stopped)

    def _play_round(self, quota: Quota) -> None:
        for part in quota.waves() if self._manner.together else [quota]:
            self._play_part(part)

    def _play_part(self, quota: Quota) -> None:
        """From a reset of all envs until every slot has played its share."""
        slots = range(quota.num_slots)
        self._quota, self._playing = quota, [quota.first_of(slot) for slot in slots]
        stage = Stage(self._reset_all())
        idle = [slot for slot in slots if self._playing[slot] is None]
        if idle:
            self._host.retire(idle)
            self._limit.stop(idle)
        for step in self._steps(stage):
            self._take(step)
            if all(episode is None for episode in self._playing):
                return

    def _reset_all(self) -> Leaves:
        slots = range(len(self._playing))
        self._within.clear()
        self._ledger.begin(slots)
        self._limit.restart(slots)
        try:
            observation = self._host.reset_all(self._first_seeds())
        except EnvRaised as raised:
            failure = self._noted(raised)
        else:
            if self._policy is None:
                self._policy = self._bind(observation, lambda slot: self._playing[slot])
            self._policy.begin(slots)
            return observation
        raise failure

    def _first_seeds(self) -> list[int] | None:
        """One seed per slot; slots without an episode get that of one they would play."""
        first, n = self._quota.episodes.start, self._quota.num_slots
        if self._seeding == "episode":
            return [self._seed_of(first + (slot - first) % n) for slot in range(n)]
        return [self._seed_of(first)] * n if self._seeding == "layout" else None

    def _seed_of(self, episode: int) -> int:
        assert self._request.seed is not None
        return derive(self._request.seed, "evaluation", 0, episode)

    def _steps(self, stage: Stage) -> Iterator[Step]:
        assert self._policy is not None
        source = steps(self._host, self._policy, stage, self._rules)
        while True:
            if monotonic() > self._deadline:
                raise self._late()
            yield self._next(source)

    def _next(self, source: Iterator[Step]) -> Step:
        try:
            with torch.no_grad():
                return next(source)
        except EnvRaised as raised:
            failure = self._noted(raised)
        except Exception as error:
            error.add_note(f"raised in an evaluation with seed={self._request.seed}, {self._progress()}")
            raise
        raise failure

    def _begin(self, due: Sequence[int]) -> tuple[Sequence[int], Sequence[int | None] | None]:
        """The loop asks: which of these slots begin another episode, and from which seeds."""
        starts = [slot for slot in due if self._playing[slot] is not None]
        fresh = [slot for slot in starts if slot not in self._within]
        self._ledger.begin(fresh)
        self._within.difference_update(starts)
        if self._seeding != "episode":
            return starts, None
        return starts, [self._seed_of(self._playing[slot] or 0) if slot in fresh else None for slot in starts]

    def _take(self, step: Step) -> None:
        assert self._policy is not None
        self._ledger.add(step.reward, step.void)
        scene = Scene(self._host, self._quota, self._ledger, self._playing, self._policy)
        ends = {slot: (terminated, truncated) for slot, terminated, truncated in step.ended}
        for slot in self._shown(step) if self._manner.watchers else list(ends):
            for watcher in self._manner.watchers:
                watcher.saw(step, slot, scene)
            if slot in ends and self._playing[slot] is not None:
                self._end(step, slot, ends[slot])
        for watcher in self._manner.watchers:
            watcher.stepped(scene)

    def _shown(self, step: Step) -> list[int]:
        return [slot for slot, episode in enumerate(self._playing) if episode is not None and slot not in step.void]

    def _end(self, step: Step, slot: int, flags: tuple[bool, bool]) -> None:
        sums = float(self._ledger.returns[slot]), int(self._ledger.lengths[slot])
        score = self._manner.scoring(step, slot, sums)
        if score is None and slot in self._limit.cut:
            score = sums
        if score is None:
            self._within.add(slot)
        else:
            self._book(slot, score, flags)

    def _book(self, slot: int, score: Score, flags: tuple[bool, bool]) -> None:
        episode = self._playing[slot]
        assert episode is not None
        seed = self._seed_of(episode) if self._seeding == "episode" else NO_SEED
        self._ledger.book(episode, Booked(*score, *flags, seed))
        self._playing[slot] = self._quota.after(episode)

    def _noted(self, raised: EnvRaised) -> Exception:
        slot, error = raised.env, raised.cause
        episode, seed = self._playing[slot], self._host.seed_of(slot)
        error.add_note(
            f"raised by the env of slot {slot} in episode {episode}, after {self._ledger.lengths[slot]} steps; "
            f"seed of its reset: {seed}; {self._progress()}"
        )
        return error

    def _late(self) -> WorkerLate:
        seconds = self._request.limits.timeout_s
        still = {slot: int(self._ledger.lengths[slot]) for slot, ep in enumerate(self._playing) if ep is not None}
        return WorkerLate(
            f"the evaluation took longer than timeout_s={seconds}: {self._progress()}; steps made in the unfinished "
            f"ones, by slot: {still}; give it more time, fewer episodes, or max_steps",
            workers=(0,),
            deadline=seconds,
        )

    def _progress(self) -> str:
        return f"{len(self._ledger)} of {self._quota.episodes.stop} episodes complete"


def _seeding(host: ArrayHost, root: int | None) -> Seeding:
    if root is not None and host.spec.seeding == "none":
        why = f"{host.env} cannot be seeded; seed it where it is made, and pass seed=None"
        warn_of_no_effect("the seed of an evaluation", why)
    return "none" if root is None else host.spec.seeding
