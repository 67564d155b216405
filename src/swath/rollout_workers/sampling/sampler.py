"""Collects what a call of `sample()` hands out: steps until there is enough, then takes it.

    missing? ──▶ steps() ──▶ block ──▶ metrics, waiting rows ──▶ … ──▶ taken ──▶ finished batch

A block ends where the call does, or where something raises: no row is lost, and each has the version that made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from swath.rollout.episodes.ids import TrajectoryIds
from swath.rollout.episodes.statistics import EpisodeSums
from swath.rollout.failures import VoidRows
from swath.rollout.hosts.base import ArrayHost, EnvRaised
from swath.rollout.loop import Rules, Stage, Step, go_on, steps
from swath.rollout.spaces import Array
from swath.rollout.until import StepLimit
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.episode import LONE_AGENT
from swath.rollout_workers.hosts.processing import blank
from swath.rollout_workers.metrics import MetricsLog, RolloutMetrics, SamplerCounts
from swath.rollout_workers.sampling.actor import PolicyActor
from swath.rollout_workers.sampling.block import Block, Label, Writer
from swath.rollout_workers.sampling.columns import Taken
from swath.rollout_workers.sampling.finishing import Finisher, LongEpisodes, count_failures, noted
from swath.rollout_workers.sampling.waiting import Run, Waiting
from swath.rollout_workers.sampling.watching import Watch


@dataclass(frozen=True)
class Quota:
    """What a call hands out.

    Attributes:
        length: F, steps of a fragment.
        fragments: N, how many of them.
        whole_episodes: not fragments, but at least as many steps in whole episodes.
    """

    length: int
    fragments: int
    whole_episodes: bool = False

    @property
    def rows(self) -> int:
        """Steps of a call."""
        return self.length * self.fragments


T = TypeVar("T")


@dataclass(frozen=True)
class SamplerParts:
    """What a sampler is made of.

    Attributes:
        host: the envs, with observations as the policy sees them.
        failures: what becomes of envs that raise.
        actor: the policy.
        finisher: makes batches of rows.
        ids: gives trajectory ids.
        log: of metrics.
        clip: what becomes of rewards; None: nothing.
        watch: of episodes, where somebody looks at them.
    """

    host: ArrayHost
    failures: VoidRows
    actor: PolicyActor
    finisher: Finisher
    ids: TrajectoryIds
    log: MetricsLog
    clip: Callable[[Array], Array] | None = None
    watch: Watch | None = None


class Sampler:
    """Collects from B envs of one agent each. Used by one thread at a time.

    Args:
        parts: what it is made of.
        quota: what a call hands out.

    Attributes:
        counts: what was done.
    """

    def __init__(self, parts: SamplerParts, quota: Quota) -> None:
        n = parts.host.spec.num_envs
        self.parts, self.quota, self.counts = parts, quota, SamplerCounts()
        self.waiting = Waiting(n)
        self._sums = EpisodeSums(n, 2)
        self._stage = Stage(blank(parts.host), list(range(n)))
        begin = go_on if parts.watch is None else self._create
        self._rules = Rules(StepLimit.of(parts.host.spec), begin, parts.failures)
        self._running, self._complete = EpisodeSums(n, 0), 0
        self._long = LongEpisodes()
        self._failed_at: dict[int, int] = {}
        self._noting = parts.watch is not None or parts.actor.wants.needs_notes

    def sample(self, version: int, complete: Callable[[SampleBatch, int], T]) -> T:
        """Hand out what is made of a batch, which is empty if nothing of it is to be trained on.

        Args:
            version: of the policy.
            complete: is given the batch, and how many env steps it is from; what it returns is handed out.

        Raises:
            Exception: what an env, the policy, a filter or a callback raised, as its own type with a note. Rows that
                were made are handed out by the next call, which goes on from there; only what fails while a batch is
                made of rows loses those.
        """
        while n_steps := self._missing():
            self._collect(n_steps, version)
        taken = Taken(self._take())
        try:
            batch = complete(self.parts.finisher.finish(taken), taken.count)
        except BaseException:
            self.counts.discarded += taken.count
            raise
        self.counts.env_steps += taken.count
        self.counts.agent_steps += taken.count
        self._handed_out()
        return batch

    def start_over(self) -> None:
        """Give up all running episodes; the next step is the first of others."""
        parts = self.parts
        everyone = range(parts.host.spec.num_envs)
        for env in everyone:
            self._give_up(env)
        parts.failures.start_over()
        parts.ids.begin()
        self._stage.due = list(everyone)
        if parts.watch is not None:
            parts.watch.start_over(parts.ids.next_id)

    def discard_waiting(self) -> None:
        """Rows that wait are not handed out any more."""
        self.counts.discarded += sum(self.waiting.rows)
        self.waiting = Waiting(self.parts.host.spec.num_envs)
        self._running, self._complete = EpisodeSums(self.parts.host.spec.num_envs, 0), 0

    def _missing(self) -> int:
        """How many steps to make next."""
        if not self.quota.whole_episodes:
            return self.waiting.missing(self.quota.fragments, self.quota.length)
        return 0 if sum(self.waiting.finished) >= self.quota.rows else self.quota.length

    def _take(self) -> list[Run]:
        if self.quota.whole_episodes:
            return self.waiting.take_finished()
        return self.waiting.take_fragments(self.quota.fragments, self.quota.length)

    def _collect(self, n_steps: int, version: int) -> None:
        """Make at most so many steps; what was made waits, also if something raises."""
        try:
            self._make_block(n_steps, version)
        except EnvRaised as raised:
            failures = self.parts.failures
            fatal, failures.fatal = failures.fatal, None
            if failures.lost:
                self.start_over()
            if fatal is not None:
                raise self._noted(raised) from raised.cause.__cause__

    def _make_block(self, n_steps: int, version: int) -> None:
        self._complete, self._failed_at = sum(self.waiting.finished), {}
        writer: Writer | None = None
        try:
            for step in self._steps(n_steps):
                writer = writer or Writer(step, n_steps)
                writer.write(step)
                enough = self._enough(step)
                self._after(step)
                if enough:
                    break
        finally:
            if writer is not None:
                label = Label(self.parts.ids, self.parts.clip, version, self.parts.actor.layout)
                self._keep(writer.seal(label))
            self._count(self.parts.failures.take_raised())

    def _steps(self, n_steps: int) -> Iterator[Step]:
        """That many steps, some of them timed."""
        parts = self.parts
        source = steps(parts.host, parts.actor, self._stage, self._rules)
        for _ in range(n_steps):
            parts.actor.laps.step()
            yield next(source)
            parts.actor.laps.lap("env_wait")

    def _after(self, step: Step) -> None:
        """A step is written: call who asked for it, and raise a failure that is not allowed."""
        parts = self.parts
        if self._noting:
            reward = step.reward.astype(np.float32)
            reward = reward if parts.clip is None else parts.clip(reward)
            parts.actor.note(step, reward)
            if parts.watch is not None:
                parts.watch.stepped(step, reward)
        if parts.failures.raised:
            self._count(parts.failures.take_raised())
        if parts.failures.fatal is not None:
            raise parts.failures.fatal

    def _enough(self, step: Step) -> bool:
        """Whether the call can end here, where it hands out whole episodes."""
        if not self.quota.whole_episodes:
            return False
        self._running.count_step(void=step.void)
        if step.ended:
            self._complete += int(self._running.lengths[step.ended.without(step.void).envs].sum())
            self._running.begin(step.ended.envs)
        return self._complete >= self.quota.rows

    def _keep(self, block: Block) -> None:
        """A block is made: note what ended in it, and let its rows wait."""
        self._tell(block)
        for env, t in block.failed:
            self._end_before(block, env, t)
        self.waiting.add(block)
        if self.quota.whole_episodes:
            self._warn_of_long_episodes()

    def _end_before(self, block: Block, env: int, t: int) -> None:
        """An env failed at this step: its episode ended with the row before, or is not handed out at all."""
        self._failed_at[env] = int(block.counts[env, t])
        if self.quota.whole_episodes:
            trajectory = int(block.ids[env, t])
            self.counts.discarded += block.discard(env, trajectory) + self.waiting.drop_last(env, trajectory)
        elif t:
            block.cut(env, t - 1)
        else:
            self.waiting.cut_last(env)

    def _give_up(self, env: int) -> None:
        if self.quota.whole_episodes:
            self.counts.discarded += self.waiting.drop_open(env)
            self._running.begin([env])
        else:
            self.waiting.cut_last(env)

    def _create(self, envs: Sequence[int]) -> tuple[Sequence[int], None]:
        assert self.parts.watch is not None
        self.parts.watch.create(envs)
        return envs, None

    def _tell(self, block: Block) -> None:
        """Keep the metrics of episodes that ended by themselves."""
        rows = block.rows
        ended = self._sums.count_fragment(
            block.reward, rows.reward, counts=block.counts, last=rows.last, valid=rows.valid
        )
        ids = block.ids[ended.envs, ended.steps]
        columns = (column.tolist() for column in (ended.envs, ids, ended.lengths, *ended.returns))
        self.counts.episodes += len(ids)
        self.parts.log.add([self._metrics(*row) for row in zip(*columns, strict=True)])

    def _metrics(self, env: int, trajectory: int, length: int, reward: float, raw_reward: float) -> RolloutMetrics:
        episode = None if self.parts.watch is None else self.parts.watch.episode(trajectory)
        return RolloutMetrics(
            length,
            reward,
            {(LONE_AGENT, self.parts.finisher.policy_id): reward},
            custom_metrics={} if episode is None else episode.custom_metrics,
            perf_stats=self.parts.actor.laps.get(),
            hist_data={} if episode is None else episode.hist_data,
            media={} if episode is None else episode.media,
            episode_reward_raw=raw_reward,
            env_index=env,
        )

    def _count(self, raised: list[tuple[int, Exception]]) -> None:
        """Count what envs have raised, and call `on_episode_end` of their episodes."""
        count_failures(raised, self.counts, self.parts.log)
        if self.parts.watch is not None:
            for env, error in raised:
                self.parts.watch.failed(env, error)

    def _handed_out(self) -> None:
        watch = self.parts.watch
        if watch is not None:
            watch.board.hand_out()
            watch.forget({int(i) for run in self.waiting for i in set(run.block.ids[run.env, run.start : run.stop])})

    def _warn_of_long_episodes(self) -> None:
        for env, rows in enumerate(self._running.lengths.tolist()):
            self._long.note(env, rows, self.quota.length)

    def _noted(self, raised: EnvRaised) -> Exception:
        return noted(raised, self.parts.host.seed_of(raised.env), self._failed_at.pop(raised.env, None))
