"""Collects what a call of `sample()` hands out, where several agents act in an env: steps until there is enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from swath.rollout.failures import VoidRows
from swath.rollout.hosts.base import ArrayHost, EnvRaised
from swath.rollout.hosts.returned import info_of
from swath.rollout.loop import Rules, Stage, Step, steps
from swath.rollout.until import StepLimit
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.callbacks import listeners
from swath.rollout_workers.metrics import MetricsLog, RolloutMetrics, SamplerCounts
from swath.rollout_workers.perf_stats import PerfStats
from swath.rollout_workers.sampling.finishing import LongEpisodes, count_failures, noted
from swath.rollout_workers.sampling.multi_agent.company import AgentsActor, Company
from swath.rollout_workers.sampling.multi_agent.finishing import Finisher
from swath.rollout_workers.sampling.multi_agent.handing import Chunks, chunks_of, let_go, take_out
from swath.rollout_workers.sampling.multi_agent.progress import Plan, Progress, Share
from swath.rollout_workers.sampling.multi_agent.recorder import Recorder
from swath.rollout_workers.sampling.multi_agent.role import Role
from swath.rollout_workers.sampling.multi_agent.seats import Play, Sight
from swath.rollout_workers.sampling.watching import WATCHED, Scene

T = TypeVar("T")


@dataclass(frozen=True)
class MultiAgentParts:
    """What a sampler is made of.

    Attributes:
        host: the envs, whose agents have seats.
        failures: what becomes of envs that raise.
        actor: the policies.
        company: roles and episodes.
        recorder: writes transitions.
        finisher: makes batches of them.
        log: of metrics.
        laps: the stopwatch.
        scene: what callbacks are told of the worker.
    """

    host: ArrayHost
    failures: VoidRows
    actor: AgentsActor
    company: Company
    recorder: Recorder
    finisher: Finisher
    log: MetricsLog
    laps: PerfStats
    scene: Scene


class MultiAgentSampler:
    """Collects from N envs of several agents each. Used by one thread at a time.

    Args:
        parts: what it is made of.
        plan: when a batch is complete.
        progress: of the envs, as the recorder writes it.

    Attributes:
        counts: what was done.
    """

    def __init__(self, parts: MultiAgentParts, plan: Plan, progress: Progress) -> None:
        n = parts.host.spec.num_envs
        self.parts, self.plan, self.counts = parts, plan, SamplerCounts()
        self._progress = progress
        self._stage = Stage([[Sight() for _ in range(n)]], list(range(n)))
        self._rules = Rules(StepLimit.of(parts.host.spec), self._begin, parts.failures)
        self._created: set[int] = set()
        parts.actor.announce = self._announce
        self._told = {event: listeners(parts.scene.callbacks, event) for event in WATCHED}
        self._long = LongEpisodes()
        self._failed_at: dict[int, int] = {}

    def sample(self, version: int, complete: Callable[[dict[str, SampleBatch], int], T]) -> T:
        """Hand out what is made of batches by policy id; there is none of a policy without rows.

        Args:
            version: of the policies.
            complete: is given the batches, and how many env steps they are from; what it returns is handed out.

        Raises:
            Exception: what an env, a policy, a filter or a callback raised, as its own type with a note. Transitions
                that were made are handed out by the next call, which goes on from there; only what fails while a batch
                is made of them loses those.
        """
        for role in self.parts.company.replaced:
            self._let_go(role)
        self.parts.actor.version = version
        source = steps(self.parts.host, self.parts.actor, self._stage, self._rules)
        share = self.plan.share(self._progress)
        while share is None:
            self._step(source)
            share = self.plan.share(self._progress)
        return self._handed_out(share, complete)

    def start_over(self) -> None:
        """Give up all running episodes; the next step is the first of others."""
        for play in self.parts.company.plays.values():
            if play.env not in self._stage.due:
                self._give_up(play)
        self.parts.failures.start_over()
        self._created.clear()
        self._stage.due = list(range(self.parts.host.spec.num_envs))

    def _let_go(self, role: Role) -> None:
        """Another policy has got the id to which agents are bound: their episodes, and what waits, are discarded."""
        company = self.parts.company
        bound = [play for play in company.bound_to(role) if play.env not in self._stage.due]
        for play in bound:
            self.counts.discarded += self.parts.recorder.discard(play)
        self._stage.due = sorted({*self._stage.due, *(play.env for play in bound)})
        company.forget(role)

    def _step(self, source: Any) -> None:
        """Make a step of all envs; what it led to is written before anything is raised."""
        self._failed_at.clear()
        self.parts.laps.step()
        failures = self.parts.failures
        try:
            self._write(next(source))
            if failures.fatal is not None:
                raise failures.fatal
        except EnvRaised as raised:
            failures.fatal = None
            raise self._noted(raised) from raised.cause.__cause__
        finally:
            self._count(failures.take_raised())

    def _write(self, step: Step) -> None:
        parts, void = self.parts, step.void
        plays = [(parts.company.plays[env], sight) for env, sight in enumerate(step.next_observation[0])]
        for play, sight in plays:
            if play.env in void:
                self._failed_at[play.env] = play.tally.env_steps
                self._give_up(play)
            else:
                parts.recorder.write(play, sight, info_of(step.info, play.env))
        over = [env for env, _, _ in step.ended if env not in void]
        self.counts.episodes += len(over)
        try:
            if self._told["on_episode_step"]:
                self._tell("on_episode_step", [play.env for play, _ in plays if play.env not in void])
            self._tell("on_episode_end", over)
        finally:  # callbacks may have added to what is told
            parts.log.add([self._metrics(parts.company.plays[env]) for env in over])
        if self.plan.whole:
            self._warn_of_long_episodes()

    def _begin(self, envs: Sequence[int]) -> tuple[Sequence[int], None]:
        """Episodes are about to begin in these envs."""
        for env in envs:
            if env not in self._created:
                self.parts.company.begin(env, self._progress.clocks[env])
                self._created.add(env)
                self._tell("on_episode_created", [env])
        return envs, None

    def _give_up(self, play: Play) -> None:
        """The episode ends before its time: with its last good row, or without a trace."""
        if self.plan.whole:
            self.counts.discarded += self.parts.recorder.discard(play)
        else:
            self.parts.recorder.cut(play)

    def _handed_out(self, share: Share, complete: Callable[[dict[str, SampleBatch], int], T]) -> T:
        """What is made of all that lies before the cuts."""
        taken = self._take(share)
        try:
            batches = self.parts.finisher.finish(taken)
            n_rows = sum(batch.count for batch in batches.values())
            whole = complete(batches, share.env_steps)
        except BaseException:
            self.counts.discarded += share.env_steps
            raise
        self.counts.env_steps += share.env_steps
        self.counts.agent_steps += n_rows
        return whole

    def _take(self, share: Share) -> dict[Role, Chunks]:
        """Take the transitions, and make room where they were."""
        company, taken = self.parts.company, dict[Role, Chunks]()
        for role in company.roles:
            made = take_out(role, share.cuts)
            self._progress.agent_steps -= len(made)
            chunks = chunks_of(role, made)
            if chunks is not None:
                taken[role] = chunks
        self._progress.hand_out(share)
        bound = company.seats()
        for role, seats in bound.items():
            let_go(role, seats)
        company.release(bound)
        for play in company.plays.values():
            play.tally.hand_out()
        return taken

    def _tell(self, event: str, envs: Sequence[int]) -> None:
        """Call those who listen to an event, with the episodes of these envs."""
        if self._told[event]:
            for env in envs:
                self._tell_one(event, env, self.parts.company.plays[env].episode)

    def _tell_one(self, event: str, env: int, episode: Any) -> None:
        self.parts.scene.tell(self._told[event], env, episode)

    def _announce(self, env: int) -> None:
        """An episode has begun."""
        self._created.discard(env)
        self.parts.company.plays[env].episode.has_begun = True
        self._tell("on_episode_start", [env])

    def _metrics(self, play: Play) -> RolloutMetrics:
        episode = play.episode
        return RolloutMetrics(
            episode.length,
            episode.total_reward,
            episode.agent_rewards,
            episode.custom_metrics,
            self.parts.laps.get(),
            episode.hist_data,
            episode.media,
            episode_reward_raw=play.tally.raw_reward,
            env_index=play.env,
        )

    def _count(self, raised: list[tuple[int, Exception]]) -> None:
        """Count what envs have raised, and call `on_episode_end` of their episodes."""
        count_failures(raised, self.counts, self.parts.log)
        for env, error in raised:
            self._tell_one("on_episode_end", env, error)

    def _warn_of_long_episodes(self) -> None:
        for env, play in self.parts.company.plays.items():
            self._long.note(env, play.tally.env_steps, self.plan.length)

    def _noted(self, raised: EnvRaised) -> Exception:
        return noted(raised, self.parts.host.seed_of(raised.env), self._failed_at.pop(raised.env, None))
