"""Plays whole episodes with one host and one policy. Each counts once, from its own reset to its own end.

share ──▶ begin(slots, seeds) ──▶ steps() ──▶ Step ──▶ sums ──▶ complete? ──▶ row of the result
  ▲                                                                  │
  └──────────────────── next episode of the slot ◀───────────────────┘

With S slots, slot g plays the episodes whose number leaves g as remainder by S, whichever of them are quick: an
episode's slot, seed and place in the result follow from its number alone.

    4 slots, episodes 0 … 9        slot 0 ▶ 0 4 8     slot 2 ▶ 2 6
                                   slot 1 ▶ 1 5 9     slot 3 ▶ 3 7

A runner has no clock and no backend: between two steps its caller checks the time, and whether to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import torch
from gymnasium.vector import AutoresetMode

from swath import keys
from swath.errors import warn_of_no_effect
from swath.evaluation.env_parts import counts_whole_batch, is_monitor, names_of_layers
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

# Called for each slot that made a step of an episode: rewards are summed, an end in this slot is not recorded yet. It
# runs in the thread that steps the envs; its exceptions pass.
Watcher: TypeAlias = "Callable[[Step, int, Runner], None]"


class BoundActor(Actor, Protocol):
    """A policy that is bound to a host, with the keys of its outputs, the action's first."""

    keys: tuple[keys.Key, ...]

    def restart(self, envs: Sequence[int]) -> None:
        """Reset the recurrent state and forget private entries, where all envs have been reset."""


class Runner:
    """Plays one evaluation, one range of episodes after another. One thread uses it; it neither builds nor closes envs.

    Args:
        host: the envs.
        bind: binds the policy, from the first observation and the list of the episodes that the slots play; returns
            the host that steps the envs, the policy and the observation.
        options: the conditions.
        worker: index of this worker; its slots follow the slots of the workers before it.
        watchers: called with the steps.
        monitors: whether the env's own monitors report ends and returns.

    Attributes:
        host: the envs; after the first reset their plan, if they have one.
        policy: the bound policy; `None` before the first observation.
        sums: sums of the episodes that the slots play.
        shares: the episodes of each slot.
        playing: number of the episode that each slot plays; `None` for an idle slot.
        rows: the complete episodes, by number.
        seeding: how far seeds reach.
        steps: number of env steps, without idle slots.

    Raises:
        KeyError: the envs do not write a key that the options name.
    """

    def __init__(
        self,
        host: Host,
        bind: Callable[[Leaves, Sequence[int | None]], tuple[Host, BoundActor, Leaves]],
        options: EvaluatorOptions,
        worker: int = 0,
        watchers: Sequence[Watcher] = (),
        *,
        monitors: bool = False,
    ) -> None:
        self.host, self._bind, self._options, self._watchers = host, bind, options, watchers
        spec, env, n = host.spec, host.env, host.spec.num_envs
        self._first_slot, self._total_slots, self._seed = worker * n, options.num_workers * n, options.seed or 0
        self.seeding: Seeding = "none" if options.seed is None else spec.seeding
        if options.seed is not None and spec.seeding == "none":
            reason = f"{env} cannot be seeded; seed it where it is made, and pass seed=None"
            warn_of_no_effect("the seed of an evaluation", reason)
        self._sum_keys = select_keys(host, options.reward_keys, options.done_keys)
        # A reset by mask, which this mode needs, makes gymnasium's vector statistics lose their sums.
        all_at_once = monitors and isinstance(spec, ArraySpec) and bool(names_of_layers(env, counts_whole_batch))
        loses_sums = all_at_once and env.metadata.get("autoreset_mode") == AutoresetMode.DISABLED
        self._monitors = monitors and isinstance(spec, ArraySpec) and not loses_sums
        self._monitored = self._monitors and bool(names_of_layers(env, is_monitor))
        seeded = self.seeding == "episode" or options.max_steps is not None
        self._in_waves = all_at_once or (not spec.resettable and seeded)
        self._resets_idle = spec.resettable and not spec.steps_singly
        self.sums, self.rows, self.steps = EpisodeSums(n), dict[int, EpisodeRow](), 0
        self.policy: BoundActor | None = None
        self.shares, self.playing = [range(0)] * n, list[int | None]([None] * n)
        self._stop = 0
        self._continuing: set[int] = set()  # slots whose env ended, but whose episode goes on
        self._limit = EpisodeLimit(spec, options.max_steps, self.sums.lengths)
        self._rules = Rules(self._limit, self._begin, Failures())

    def play(self, episodes: range) -> Iterator[None]:
        """Play these episodes, from a reset of all envs; yield after each step. Complete ones are in `rows`.

        Raises:
            Exception: the env, the policy or a watcher raised it; a note says where.
        """
        self.shares = self._shares_of(episodes)
        # Envs that begin episodes only all at once play in waves, in which early finishers idle.
        wave = self._total_slots if self._in_waves else max(1, len(episodes))
        for start in range(episodes.start, episodes.stop, wave):
            yield from self._play_wave(range(start, min(start + wave, episodes.stop)))

    def truncate_all(self) -> None:
        """Truncate the running episodes here."""
        for slot, episode in enumerate(self.playing):
            if episode is not None:
                self._record(slot, self._sums_of(slot), (False, True))

    @property
    def unfinished(self) -> bool:
        """Tell whether episodes are running."""
        return any(episode is not None for episode in self.playing)

    @property
    def progress(self) -> str:
        """Describe the progress in words."""
        return f"{len(self.rows)} of {self._stop} episodes complete"

    def _shares_of(self, episodes: range) -> list[range]:
        """Return the episodes of each slot; an empty range begins with the next episode that the slot would play."""
        start, total = episodes.start, self._total_slots
        slots = range(self._first_slot, self._first_slot + len(self.playing))
        return [range(start + (slot - start) % total, episodes.stop, total) for slot in slots]

    def _play_wave(self, episodes: range) -> Iterator[None]:
        """Reset all envs and step them until every slot has played its share."""
        shares, slots = self._shares_of(episodes), range(len(self.playing))
        self.playing[:], self._stop = [share[0] if share else None for share in shares], episodes.stop
        idle = [slot for slot in slots if self.playing[slot] is None]
        if not self.unfinished:
            return
        self._continuing.clear()
        self.sums.begin(slots)
        # Idle slots get the seed of the next episode that they would play: a host that gets equal seeds for all envs
        # derives different ones.
        seeds = None if self.seeding == "none" else [self._seed_of(share.start) for share in shares]
        observation = self._call_user(partial(self.host.reset_all, seeds))
        self._limit.restart(slots)
        if self.policy is None:
            self.host, self.policy, observation = self._bind(observation, self.playing)
        self.policy.restart(slots)
        if idle:
            self.host.retire(idle)
            self._limit.stop(idle)
        advance = partial(next, steps(self.host, self.policy, LoopState(observation), self._rules))
        while self.unfinished:
            self._count_step(self._call_user(advance))
            yield

    def _seed_of(self, episode: int) -> int:
        return derive(self._seed, "evaluation", 0, episode)

    def _call_user(self, function: Callable[[], Any]) -> Any:
        """Call env and policy without gradients; add a note to an exception that says where it was raised."""
        try:
            with torch.no_grad():
                return function()
        except EnvRaised as raised:
            slot, failure = raised.env, raised.cause
            episode, length = self.playing[slot], self.sums.lengths[slot]
            seed = self.host.seed_of(slot) if episode is None or self.seeding != "episode" else self._seed_of(episode)
            place = f"the env of slot {self._first_slot + slot} in episode {episode}, after {length} steps"
            failure.add_note(f"raised by {place}; seed of its reset: {seed}; {self.progress}")
        except Exception as error:
            error.add_note(f"raised in an evaluation with seed={self._options.seed}, {self.progress}")
            raise
        raise failure

    def _begin(self, due: Sequence[int]) -> tuple[Sequence[int], Sequence[int | None] | None]:
        """Tell the loop which of the ended slots begin another episode, and their seeds.

        Idle slots of a batch that is stepped together begin too, since no env may be stepped past its end.
        """
        starts = [slot for slot in due if self._resets_idle or self.playing[slot] is not None]
        fresh = [slot for slot in starts if slot not in self._continuing]
        self.sums.begin(fresh)
        self._continuing.difference_update(starts)
        if self.seeding != "episode":
            return starts, None
        numbers = [self.playing[slot] if slot in fresh else None for slot in starts]
        return starts, [None if number is None else self._seed_of(number) for number in numbers]

    def _count_step(self, step: Step) -> None:
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
                    self._continuing.add(slot)
                else:
                    self._record(slot, score, ends[slot])

    def _score(self, step: Step, slot: int, *, truncated: bool) -> Score | None:
        """Return the score of an episode; `None` if it goes on, since its monitor does not report this termination.

        Wrappers above a monitor may end several times within one episode (a life lost) or change the rewards. Monitors
        of envs that cannot be inspected count where the infos have an episode.
        """
        total, length = self._sums_of(slot)
        if self._sum_keys:
            return float(mean_of(_next_entries(step, self.host.spec), self._sum_keys, len(self.playing))[slot]), length
        report = info_of(step.info, slot).get("episode") if self._monitors else None
        if isinstance(report, Mapping) and {"r", "l"} <= report.keys():
            return float(report["r"]), int(report["l"])
        return (total, length) if truncated or not self._monitored else None

    def _sums_of(self, slot: int) -> Score:
        return float(self.sums.returns[slot]), int(self.sums.lengths[slot])

    def _record(self, slot: int, score: Score, flags: tuple[bool, bool]) -> None:
        episode = self.playing[slot]
        assert episode is not None
        seed = self._seed_of(episode) if self.seeding == "episode" else NO_SEED
        self.rows[episode] = (*score, *flags, seed)
        next_episode = episode + self._total_slots
        self.playing[slot] = next_episode if next_episode < self._stop else None


def _next_entries(step: Step, spec: HostSpec) -> Mapping[keys.Key, torch.Tensor]:
    """Return the entries under `"next"` `[*B]` of a step; of a plan only the observations."""
    if isinstance(spec, TensorDictSpec):
        return step.outputs[0].get(keys.NEXT)  # type: ignore[no-any-return]
    return dict(zip(spec.observation_keys, map(torch.from_numpy, step.next_observation), strict=True))


class EpisodeLimit(StepLimit):
    """A step limit for episodes that may go on after an end of their env; the envs' own limits count from each reset.

    Args:
        spec: the envs.
        max_steps: most env steps of an episode; `None` for no limit.
        lengths: int64 `[S]`, steps of each slot's episode so far; the sums write it.
    """

    def __init__(self, spec: HostSpec, max_steps: int | None, lengths: Array) -> None:
        self._lengths = lengths
        super().__init__(spec, max_steps)

    def _max_steps(self, env: int) -> int:
        return min(super()._max_steps(env), self._common - int(self._lengths[env]))


def select_keys(host: Host, reward_keys: Any, done_keys: Any) -> list[keys.Key]:
    """Set the rewards and ends that the host reads; the env's root done always ends an episode.

    Args:
        host: the envs.
        reward_keys: entries whose mean is the reward of a step.
        done_keys: entries that end an episode when all are set.

    Returns:
        Entries of `"next"` in which the env itself sums these rewards; empty if it does not.

    Raises:
        KeyError: the envs do not write them; the message names the entries that they write.
    """
    spec = host.spec
    rewards, flags = (
        (spec.reward_keys, spec.all_done_keys) if isinstance(spec, TensorDictSpec) else ((keys.REWARD,), keys.FLAGS)
    )
    selected = []
    for name, value, entries in (("reward_keys", reward_keys, rewards), ("done_keys", done_keys, flags)):
        paths, written = [*map(keys.as_tuple, keys.keys_of(name, value))], [*map(keys.under_next, entries)]
        missing = [keys.as_key(path) for path in paths if path not in written]
        if missing:
            raise KeyError(f"{name} has {missing}, which the env does not write; it writes {written}")
        selected.append([path[1:] for path in paths])
    if isinstance(spec, ArraySpec):
        return []
    assert isinstance(host, TensorDictHost)
    host.reader = StepReader(spec, *([keys.as_key(path) for path in paths] for paths in selected))
    sums = [(*path[:-1], f"episode_{path[-1]}") for path in selected[0]]  # where `RewardSum` keeps them
    observed = {keys.as_tuple(key) for key in spec.observation_keys}
    return [*map(keys.as_key, sums)] if {*sums} <= observed else []
