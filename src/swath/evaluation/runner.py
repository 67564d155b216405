"""Plays whole episodes with one host and one policy, each counted once, from its own reset to its own end.

quota ──▶ begin(slots, seeds) ──▶ steps() ──▶ Step ──▶ sums ──▶ complete? ──▶ row of the result
  ▲                                                                  │
  └─────────────────── what the slot plays next ◀────────────────────┘

Knows neither clock nor backend: whoever drives it looks at the time, and at whether to go on, between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from swath.errors import warn_of_no_effect
from swath.evaluation.reading import Score, Scoring, own_sums
from swath.evaluation.request import EvalRequest
from swath.evaluation.result import NO_SEED, EpisodeRow
from swath.keys import Key
from swath.rollout.episodes.statistics import EpisodeSums
from swath.rollout.failures import Failures
from swath.rollout.hosts.base import EnvRaised, Host, HostSpec, Seeding, TensorDictSpec
from swath.rollout.loop import Actor, Rules, Stage, Step, steps
from swath.rollout.spaces import Array, Leaves
from swath.rollout.until import StepLimit
from swath.seeds import derive


@dataclass(frozen=True)
class Quota:
    """The share of each of S slots in a run of episodes: those whose number leaves the slot's as remainder by S.

    Fixed before the first step, so that quick episodes count no more than slow ones.

        4 slots, episodes 0 … 9        slot 0 ▶ 0 4 8     slot 2 ▶ 2 6
                                       slot 1 ▶ 1 5 9     slot 3 ▶ 3 7

    An episode's slot, seed and place in the result follow from its number alone, also where the slots are those of
    several workers: worker w with B slots has those from w·B on, and knows them as 0 … B-1.

    Attributes:
        episodes: numbers of the episodes to play, without gaps.
        num_slots: S, of all workers.
        first_slot: which of them is slot 0 here.
    """

    episodes: range
    num_slots: int
    first_slot: int = 0

    def first_of(self, slot: int) -> int | None:
        """The first episode of this slot; `None` if it has none."""
        return self._if_asked(self.nearest(slot))

    def nearest(self, slot: int) -> int:
        """The first episode that this slot plays, or would play if there were more."""
        start = self.episodes.start
        return start + (self.first_slot + slot - start) % self.num_slots

    def after(self, episode: int) -> int | None:
        """What the slot that played this episode plays next; `None` if that was its last."""
        return self._if_asked(episode + self.num_slots)

    def target(self, slot: int) -> int:
        """How many episodes this slot plays."""
        first = self.first_of(slot)
        return 0 if first is None else len(range(first, self.episodes.stop, self.num_slots))

    def waves(self) -> Iterator[Quota]:
        """The same episodes in runs of at most one per slot, for envs that only reset together."""
        for start in self.episodes[:: self.num_slots]:
            yield replace(self, episodes=range(start, min(start + self.num_slots, self.episodes.stop)))

    def _if_asked(self, episode: int) -> int | None:
        return episode if episode < self.episodes.stop else None


class Performer(Actor, Protocol):
    """A policy that is bound to a host, and tells the keys of what it answers, those of the action first."""

    keys: tuple[Key, ...]


@dataclass(frozen=True)
class Scene:
    """An evaluation as it stands.

    Attributes:
        host: the envs.
        quota: which slot plays what.
        sums: of the episodes that the slots play.
        rows: the complete episodes, by number.
        playing: number of the episode that each slot plays; `None` where none is left.
        policy: what acts.
    """

    host: Host
    quota: Quota
    sums: EpisodeSums
    rows: Mapping[int, EpisodeRow]
    playing: Sequence[int | None]
    policy: Performer


class Watcher(Protocol):
    """Sees every step of every slot that plays. It runs in the thread that steps the envs; its exceptions pass."""

    def saw(self, step: Step, slot: int, scene: Scene) -> None:
        """A slot made this step; rewards are summed, an end is not yet booked."""

    def stepped(self, scene: Scene) -> None:
        """All slots made their step, and ends are booked."""


EpisodeOf = Callable[[int], int | None]
"""The number of the episode that a slot plays."""

Bind = Callable[[Leaves, EpisodeOf], Performer]
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


class Runner:
    """Plays one evaluation, quota by quota; used by one thread. It neither builds nor closes anything.

    Args:
        host: the envs.
        bind: makes the policy, once the first observation is there.
        request: under which conditions.
        manner: what varies with the envs and the caller.

    Attributes:
        sums: of the episodes that the slots play.
        rows: the complete episodes, by number.
        seeding: how far seeds reach.
        steps: env steps made, those of the slots that idle left out.
    """

    def __init__(self, host: Host, bind: Bind, request: EvalRequest, manner: Manner | None = None) -> None:
        n = host.spec.num_envs
        self._host, self._bind, self._request = host, bind, request
        self._manner = manner or Manner()
        self.seeding = _seeding(host, request.seed)
        self.sums, self.rows = EpisodeSums(n), dict[int, EpisodeRow]()
        self.steps = 0
        self._limit = EpisodeLimit(host.spec, request.max_steps, self.sums.lengths)
        self._rules = Rules(self._limit, self._begin, Failures())
        self._plays_on = isinstance(host.spec, TensorDictSpec) and not host.spec.alone
        self._policy: Performer | None = None
        self._quota = Quota(range(0), n)
        self._playing: list[int | None] = [None] * n
        self._within: set[int] = set()  # slots whose env ended, but whose episode goes on

    def play(self, quota: Quota) -> Iterator[None]:
        """Play these episodes, from a reset of all envs; yields after each step. Complete ones are in `rows`.

        Raises:
            Exception: what the env, the policy or a watcher raised, as its own type; a note says where.
        """
        for part in quota.waves() if self._manner.together else [quota]:
            yield from self._play_part(part)

    def cut(self) -> None:
        """The episodes that are being played end here, truncated."""
        for slot, episode in enumerate(self._playing):
            if episode is not None:
                self._book(slot, self._score(slot), (False, True))

    @property
    def num_slots(self) -> int:
        """How many episodes are played side by side here."""
        return len(self._playing)

    @property
    def unfinished(self) -> dict[int, int]:
        """Steps made so far in the episodes that are being played, by slot."""
        lengths, playing = self.sums.lengths, enumerate(self._playing)
        return {slot: int(lengths[slot]) for slot, episode in playing if episode is not None}

    @property
    def progress(self) -> str:
        """How far it is."""
        return f"{len(self.rows)} of {self._quota.episodes.stop} episodes complete"

    def _play_part(self, quota: Quota) -> Iterator[None]:
        """From a reset of all envs until every slot has played its share."""
        slots = range(len(self._playing))
        self._quota, self._playing = quota, [quota.first_of(slot) for slot in slots]
        idle = [slot for slot in slots if self._playing[slot] is None]
        if len(idle) == len(slots):
            return
        stage = Stage(self._reset_all())
        if idle:
            self._host.retire(idle)
            self._limit.stop(idle)
        assert self._policy is not None
        source = steps(self._host, self._policy, stage, self._rules)
        while any(episode is not None for episode in self._playing):
            self._take(self._next(source))
            yield

    def _reset_all(self) -> Leaves:
        slots = range(len(self._playing))
        self._within.clear()
        self.sums.begin(slots)
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
        """One seed per slot; slots without an episode get that of one they would play.

        Where envs take one seed for all it is the first; a host given equal ones would deal out no others.
        """
        if self.seeding == "none":
            return None
        return [self._seed_of(self._quota.nearest(slot)) for slot in range(len(self._playing))]

    def _seed_of(self, episode: int) -> int:
        assert self._request.seed is not None
        return derive(self._request.seed, "evaluation", 0, episode)

    def _next(self, source: Iterator[Step]) -> Step:
        try:
            with torch.no_grad():
                return next(source)
        except EnvRaised as raised:
            failure = self._noted(raised)
        except Exception as error:
            error.add_note(f"raised in an evaluation with seed={self._request.seed}, {self.progress}")
            raise
        raise failure

    def _begin(self, due: Sequence[int]) -> tuple[Sequence[int], Sequence[int | None] | None]:
        """The loop asks: which of these slots begin another episode, and from which seeds.

        TorchRL's batches step all of their envs: those that idle begin again too, for none may be stepped past its end.
        """
        starts = [slot for slot in due if self._plays_on or self._playing[slot] is not None]
        fresh = [slot for slot in starts if slot not in self._within]
        self.sums.begin(fresh)
        self._within.difference_update(starts)
        if self.seeding != "episode":
            return starts, None
        return starts, [self._seed_of(self._playing[slot] or 0) if slot in fresh else None for slot in starts]

    def _take(self, step: Step) -> None:
        assert self._policy is not None
        self.steps += len(self._playing) - self._playing.count(None)
        self.sums.count_step(step.reward, void=step.void)
        scene = Scene(self._host, self._quota, self.sums, self.rows, self._playing, self._policy)
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
        sums = self._score(slot)
        score = self._manner.scoring(step, slot, sums)
        if score is None and slot in self._limit.cut:
            score = sums
        if score is None:
            self._within.add(slot)
        else:
            self._book(slot, score, flags)

    def _score(self, slot: int) -> Score:
        return float(self.sums.returns[0, slot]), int(self.sums.lengths[slot])

    def _book(self, slot: int, score: Score, flags: tuple[bool, bool]) -> None:
        episode = self._playing[slot]
        assert episode is not None
        seed = self._seed_of(episode) if self.seeding == "episode" else NO_SEED
        self.rows[episode] = (*score, *flags, seed)
        self._playing[slot] = self._quota.after(episode)

    def _noted(self, raised: EnvRaised) -> Exception:
        slot, error = raised.env, raised.cause
        episode = self._playing[slot]
        own = self.seeding == "episode" and episode is not None
        seed = self._seed_of(episode or 0) if own else self._host.seed_of(slot)
        error.add_note(
            f"raised by the env of slot {self._quota.first_slot + slot} in episode {episode}, "
            f"after {self.sums.lengths[slot]} steps; seed of its reset: {seed}; {self.progress}"
        )
        return error


class EpisodeLimit(StepLimit):
    """A step limit that reads how long episodes are from their sums, and remembers which slots it cut last.

    The envs' own limits count from each reset, of which there may be several in an episode.

    Args:
        spec: the envs.
        max_steps: most env steps of an episode; `None` for no limit.
        lengths: int64 `[S]`, steps of each slot's episode before the present one; the sums write it.

    Attributes:
        cut: slots whose episode reached the limit with the last step.
    """

    def __init__(self, spec: HostSpec, max_steps: int | None, lengths: Array) -> None:
        super().__init__(spec.limits or [None] * spec.num_envs)
        self._max, self._lengths = max_steps, lengths
        self._stopped: set[int] = set()
        self.cut: Sequence[int] = ()

    def restart(self, envs: Sequence[int]) -> None:
        """These slots are stepped (again)."""
        super().restart(envs)
        self._stopped.difference_update(envs)

    def stop(self, envs: Sequence[int]) -> None:
        """These slots make no step."""
        super().stop(envs)
        self._stopped.update(envs)

    def tick(self) -> Sequence[int]:
        """One step was made: the slots whose episode has now reached the limit, or their env its own."""
        expired = super().tick()
        if self._max is not None:
            full = np.flatnonzero(self._lengths + 1 >= self._max)
            self.cut = [int(slot) for slot in full if int(slot) not in self._stopped]
        return [*expired, *self.cut]


def _seeding(host: Host, root: int | None) -> Seeding:
    if root is not None and host.spec.seeding == "none":
        why = f"{host.env} cannot be seeded; seed it where it is made, and pass seed=None"
        warn_of_no_effect("the seed of an evaluation", why)
    return "none" if root is None else host.spec.seeding


def only_together(host: Host, request: EvalRequest) -> bool:
    """Whether every reset with a seed, or before an env's own end, must be one of all envs."""
    seeded = request.seed is not None and host.spec.seeding == "episode"
    return not host.spec.resettable and (seeded or request.max_steps is not None)
