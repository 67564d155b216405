"""Plays whole episodes with one host and one policy, each counted once, from its own reset to its own end.

share ──▶ begin(slots, seeds) ──▶ steps() ──▶ Step ──▶ sums ──▶ complete? ──▶ row of the result
  ▲                                                                  │
  └─────────────────── what the slot plays next ◀────────────────────┘

With S slots, slot g plays the episodes whose number leaves g as remainder by S, whichever of them are quick: an
episode's slot, seed and place in the result follow from its number alone.

    4 slots, episodes 0 … 9        slot 0 ▶ 0 4 8     slot 2 ▶ 2 6
                                   slot 1 ▶ 1 5 9     slot 3 ▶ 3 7

Knows neither clock nor backend: whoever drives it looks at the time, and at whether to go on, between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import torch
from gymnasium.vector import AutoresetMode

from swath import keys
from swath.errors import warn_of_no_effect
from swath.evaluation.env_parts import counts_for_all, is_monitored
from swath.evaluation.options import EvaluatorOptions
from swath.evaluation.result import NO_SEED, EpisodeRow
from swath.rollout.episodes.statistics import EpisodeSums
from swath.rollout.failures import Failures
from swath.rollout.hosts.base import ArraySpec, EnvRaised, Host, HostSpec, Seeding, TensorDictSpec
from swath.rollout.hosts.results import info_of
from swath.rollout.hosts.tensordict import StepReader, TensorDictHost, mean_of
from swath.rollout.loop import Actor, LoopState, Rules, Step, StepLimit, steps
from swath.rollout.spaces import Array, Leaves
from swath.seeds import derive

Score: TypeAlias = tuple[float, int]  # return and length of an episode

# Called for each slot that made a step of an episode: rewards are summed, an end in this slot is not yet booked. It
# runs in the thread that steps the envs; its exceptions pass.
Watcher: TypeAlias = "Callable[[Step, int, Runner], None]"


class BoundActor(Actor, Protocol):
    """A policy that is bound to a host, with the keys of what it answers, those of the action first."""

    keys: tuple[keys.Key, ...]


class Runner:
    """Plays one evaluation, run of episodes by run; used by one thread. It neither builds nor closes anything.

    Args:
        host: the envs.
        act: binds the policy, given the first observation and the episode that each slot plays, which changes.
        options: under which conditions.
        worker: which of the workers that share the episodes plays here; its slots come behind those of others.
        watchers: who is shown the steps.
        monitors: whether the env's own monitors are believed about ends and returns.

    Attributes:
        host: the envs.
        policy: what acts; `None` before the first observation.
        sums: of the episodes that the slots play.
        shares: which episodes each slot plays.
        playing: number of the episode that each slot plays; `None` where none is left.
        rows: the complete episodes, by number.
        seeding: how far seeds reach.
        steps: env steps made, those of the slots that idle left out.

    Raises:
        KeyError: the envs do not write what the request reads.
    """

    def __init__(
        self,
        host: Host,
        act: Callable[[Leaves, Sequence[int | None]], BoundActor],
        options: EvaluatorOptions,
        worker: int = 0,
        watchers: Sequence[Watcher] = (),
        *,
        monitors: bool = False,
    ) -> None:
        self.host, self._act, self._options, self._watchers = host, act, options, watchers
        spec, env, n = host.spec, host.env, host.spec.num_envs
        self._first, self._total, self._root = worker * n, options.num_workers * n, options.seed or 0
        self.seeding: Seeding = "none" if options.seed is None else spec.seeding
        if options.seed is not None and spec.seeding == "none":
            why = f"{env} cannot be seeded; seed it where it is made, and pass seed=None"
            warn_of_no_effect("the seed of an evaluation", why)
        self._summed = read(host, options.reward_keys, options.done_keys)
        # A reset by mask, which this mode needs, makes gymnasium's vector statistics lose their sums.
        all_at_once = monitors and isinstance(spec, ArraySpec) and counts_for_all(env)
        loses = all_at_once and env.metadata.get("autoreset_mode") == AutoresetMode.DISABLED
        self._monitors = monitors and isinstance(spec, ArraySpec) and not loses
        self._monitored = self._monitors and is_monitored(env)
        seeded = self.seeding == "episode" or options.max_steps is not None
        self._together = all_at_once or (not spec.resettable and seeded)
        self._plays_on = spec.resettable and not spec.steps_singly
        self.sums, self.rows, self.steps = EpisodeSums(n), dict[int, EpisodeRow](), 0
        self.policy: BoundActor | None = None
        self.shares, self.playing = [range(0)] * n, list[int | None]([None] * n)
        self._stop = 0
        self._within: set[int] = set()  # slots whose env ended, but whose episode goes on
        self._limit = EpisodeLimit(spec, options.max_steps, self.sums.lengths)
        self._rules = Rules(self._limit, self._begin, Failures())

    def play(self, episodes: range) -> Iterator[None]:
        """Play these episodes, from a reset of all envs; yields after each step. Complete ones are in `rows`.

        Raises:
            Exception: what the env, the policy or a watcher raised, as its own type; a note says where.
        """
        self.shares = self._shares_of(episodes)
        # Envs that begin episodes only all at once play in waves, in which early finishers idle.
        wave = self._total if self._together else max(1, len(episodes))
        for start in range(episodes.start, episodes.stop, wave):
            yield from self._play_part(range(start, min(start + wave, episodes.stop)))

    def cut(self) -> None:
        """The episodes that are being played end here, truncated."""
        for slot, episode in enumerate(self.playing):
            if episode is not None:
                self._book(slot, self._own_score(slot), (False, True))

    @property
    def unfinished(self) -> bool:
        """Whether episodes are being played."""
        return any(episode is not None for episode in self.playing)

    @property
    def progress(self) -> str:
        """How far it is."""
        return f"{len(self.rows)} of {self._stop} episodes complete"

    def _shares_of(self, episodes: range) -> list[range]:
        """What each slot plays of them; where that is nothing, the range begins with what it would play next."""
        start, total, slots = episodes.start, self._total, range(self._first, self._first + len(self.playing))
        return [range(start + (slot - start) % total, episodes.stop, total) for slot in slots]

    def _play_part(self, episodes: range) -> Iterator[None]:
        """From a reset of all envs until every slot has played its share."""
        shares, slots = self._shares_of(episodes), range(len(self.playing))
        self.playing[:], self._stop = [share[0] if share else None for share in shares], episodes.stop
        idle = [slot for slot in slots if self.playing[slot] is None]
        if not self.unfinished:
            return
        self._within.clear()
        self.sums.begin(slots)
        # Slots without an episode get the seed of one they would play: a host that is given equal ones for all envs
        # deals out no others.
        seeds = None if self.seeding == "none" else [self._seed_of(share.start) for share in shares]
        observation = self._tried(partial(self.host.reset_all, seeds))
        self._limit.restart(slots)
        if self.policy is None:
            self.policy = self._act(observation, self.playing)
        self.policy.begin(slots)
        if idle:
            self.host.retire(idle)
            self._limit.stop(idle)
        advance = partial(next, steps(self.host, self.policy, LoopState(observation), self._rules))
        while self.unfinished:
            self._take(self._tried(advance))
            yield

    def _seed_of(self, episode: int) -> int:
        return derive(self._root, "evaluation", 0, episode)

    def _tried(self, do: Callable[[], Any]) -> Any:
        """What this gives; a note on what it raises says where."""
        try:
            with torch.no_grad():
                return do()
        except EnvRaised as raised:
            slot, failure = raised.env, raised.cause
            episode, length = self.playing[slot], self.sums.lengths[slot]
            seed = self.host.seed_of(slot) if episode is None or self.seeding != "episode" else self._seed_of(episode)
            where = f"the env of slot {self._first + slot} in episode {episode}, after {length} steps"
            failure.add_note(f"raised by {where}; seed of its reset: {seed}; {self.progress}")
        except Exception as error:
            error.add_note(f"raised in an evaluation with seed={self._options.seed}, {self.progress}")
            raise
        raise failure

    def _begin(self, due: Sequence[int]) -> tuple[Sequence[int], Sequence[int | None] | None]:
        """The loop asks: which of these slots begin another episode, and from which seeds.

        Envs that only step together all do: those that idle begin again too, for none may be stepped past its end.
        """
        starts = [slot for slot in due if self._plays_on or self.playing[slot] is not None]
        fresh = [slot for slot in starts if slot not in self._within]
        self.sums.begin(fresh)
        self._within.difference_update(starts)
        if self.seeding != "episode":
            return starts, None
        numbers = [self.playing[slot] if slot in fresh else None for slot in starts]
        return starts, [None if number is None else self._seed_of(number) for number in numbers]

    def _take(self, step: Step) -> None:
        self.steps += len(self.playing) - self.playing.count(None)
        self.sums.count_step(step.reward, void=step.void)
        ends = {slot: (terminated, truncated) for slot, terminated, truncated in step.ends}
        for slot in range(len(self.playing)) if self._watchers else list(ends):
            if self.playing[slot] is None or slot in step.void:
                continue
            for watch in self._watchers:
                watch(step, slot, self)
            if slot in ends:
                score = self._score(step, slot, truncated=ends[slot][1])
                if score is None:
                    self._within.add(slot)
                else:
                    self._book(slot, score, ends[slot])

    def _score(self, step: Step, slot: int, *, truncated: bool) -> Score | None:
        """Return what an episode earned; `None` if it goes on, since its monitor does not report this termination.

        Wrappers above a monitor may end several times within one episode (a life lost) or change the rewards. Envs that
        cannot be looked into are believed where their infos have an episode.
        """
        total, length = self._own_score(slot)
        if self._summed:
            return float(mean_of(step.outputs[0].get(keys.NEXT), self._summed, len(self.playing))[slot]), length
        said = info_of(step.info, slot).get("episode") if self._monitors else None
        if isinstance(said, Mapping) and {"r", "l"} <= said.keys():
            return float(said["r"]), int(said["l"])
        return (total, length) if truncated or not self._monitored else None

    def _own_score(self, slot: int) -> Score:
        return float(self.sums.returns[slot]), int(self.sums.lengths[slot])

    def _book(self, slot: int, score: Score, flags: tuple[bool, bool]) -> None:
        episode = self.playing[slot]
        assert episode is not None
        seed = self._seed_of(episode) if self.seeding == "episode" else NO_SEED
        self.rows[episode] = (*score, *flags, seed)
        following = episode + self._total
        self.playing[slot] = following if following < self._stop else None


class EpisodeLimit(StepLimit):
    """A step limit for episodes that may continue after an end of their env; limits of envs count from each reset.

    Args:
        spec: properties of the envs.
        common: step limit of an episode; `None` for no limit.
        lengths: int64 `[S]`, steps of each slot's episode so far; the sums write it.
    """

    def __init__(self, spec: HostSpec, common: int | None, lengths: Array) -> None:
        self._lengths = lengths
        super().__init__(spec, common)

    def _max_steps(self, env: int) -> int:
        return min(super()._max_steps(env), self._common - int(self._lengths[env]))


def read(host: Host, reward_keys: Any, done_keys: Any) -> list[keys.Key]:
    """Have the host read these beside the env's root done, which ends an episode in any case.

    Args:
        host: the envs.
        reward_keys: entries whose mean is the reward of a step.
        done_keys: entries that end an episode when all are set.

    Returns:
        Entries of `"next"` in which the env itself sums these rewards; none if it does not.

    Raises:
        KeyError: the envs do not write them; the message has those that they write.
    """
    spec = host.spec
    names = (keys.REWARD,), keys.FLAGS
    rewards, flags = (spec.reward_keys, spec.all_done_keys) if isinstance(spec, TensorDictSpec) else names
    read = []
    for name, given, written in (("reward_keys", reward_keys, rewards), ("done_keys", done_keys, flags)):
        paths, there = [*map(keys.as_tuple, keys.keys_of(name, given))], [*map(keys.under_next, written)]
        missing = [keys.as_key(path) for path in paths if path not in there]
        if missing:
            raise KeyError(f"{name} has {missing}, which the env does not write; it writes {there}")
        read.append([path[1:] for path in paths])
    if isinstance(spec, ArraySpec):
        return []
    assert isinstance(host, TensorDictHost)
    host.reader = StepReader(spec, *([keys.as_key(path) for path in paths] for paths in read))
    sums = [(*path[:-1], f"episode_{path[-1]}") for path in read[0]]  # where `RewardSum` keeps them
    return (
        [keys.as_key(path) for path in sums] if {*sums} <= {keys.as_tuple(key) for key in spec.observation_keys} else []
    )
