"""Collects what a call of `sample()` hands out: steps until there is enough, then makes batches of it.

    steps() ─▶ slots: paid, ended ─▶ transitions ─▶ … ─▶ those before the cuts ─▶ batches
       ▲                                                            │
    policies: rows of what they see and answer ◀── rows that nobody refers to any more make room

No transition is lost where something raises, and each has the version of the policy that made it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from swath.errors import warn
from swath.rollout.hosts.base import EnvRaised
from swath.rollout.loop import Rules, Stage, Step, StepLimit, steps
from swath.rollout.spaces import Array
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.callbacks import listeners
from swath.rollout_workers.config.policy_spec import mapper
from swath.rollout_workers.episode import LONE_AGENT, NONE, Episode, Slots
from swath.rollout_workers.hosts.many_agents import ManyAgents
from swath.rollout_workers.hosts.slot_host import LoneAgents, SlotHost
from swath.rollout_workers.metrics import RolloutMetrics
from swath.rollout_workers.sampling.batches import BatchMaker, Info
from swath.rollout_workers.sampling.policy_rows import PolicyRows
from swath.rollout_workers.sampling.progress import EnvProgress, Quota

T = TypeVar("T")

_ROWS = ("row", "acted", "before")
_WHERE = ("step", "env", "episode", "agent")

_WATCHED = ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end")
"""Callbacks that take episodes: before the reset, before the first action, after each step, at the end."""

LONG = 5_000
"""Steps after which an episode is warned of, where only whole ones are handed out."""


class Sampler:
    """Collects from B envs. Used by one thread at a time.

    Args:
        envs: those of a worker.
        lone: the id of the policy that acts in all envs, which have one agent each; None: they have several.
        counts: what was done before, to go on with.

    Attributes:
        counts: what was done.
        quota: what a call hands out.
    """

    quota: Quota

    def __init__(self, envs: Any, lone: str | None, counts: dict[str, int]) -> None:
        worker, host, laps = envs.worker, envs.host, envs.laps
        n = host.spec.num_envs
        self.counts, self._envs, self._worker, self._lone = counts, envs, worker, lone
        self._failures, self._laps = envs.failures, envs.laps
        self._slots = Slots(n)
        self._transitions, self._progress = self._slots.transitions, EnvProgress(self._slots.clocks)
        self._slots.waiting = self._waiting
        self._policies: dict[int, PolicyRows] = {}
        self._host: SlotHost = (
            ManyAgents(host, self._slots, laps, self._rows_of)
            if lone is None
            else LoneAgents(host, self._slots, laps, self._rows_of(lone))
        )
        self._host.announce = self._announce
        self._episodes: dict[int, Episode] = {}
        self._maker = BatchMaker(worker, self._episodes, self._agent, self._infos_of, envs.unroll_ids)
        self._listening = {event: listeners(worker.callbacks, event) for event in _WATCHED}
        looked_at = [
            rows.sees_episodes or self._maker.is_chunk_by_chunk(rows.policy) for rows in self._policies.values()
        ]
        self._watched = lone is None or any(self._listening.values()) or any(looked_at)
        self._running = [NONE] * n
        self._stage = Stage([], list(range(n)))
        self._rules = Rules(StepLimit.of(host.spec), self._begin, envs.failures)
        self._created: set[int] = set()
        self._ended: list[tuple[int, Episode]] = []
        self._warned: set[int] = set()
        self._failed_at: dict[int, int] = {}

    def sample(self, version: int, explore: bool | None, complete: Callable[[dict[str, SampleBatch], int], T]) -> T:
        """Hand out what is made of batches by policy id; there is none of a policy without rows.

        Args:
            version: of the policies.
            explore: whether actions are sampled; None: as the settings of each policy say.
            complete: is given the batches, and how many env steps they are from; what it returns is handed out.

        Raises:
            Exception: what an env, a policy, a filter or a callback raised, as its own type with a note. Transitions
                that were made are handed out by the next call, which goes on from there; only what fails while a batch
                is made of them loses those.
        """
        self._let_go_of_replaced()
        host = self._host
        host.version, host.explore = version, explore
        source = steps(host, host, self._stage, self._rules)
        try:
            while (cuts := self._progress.cuts(self.quota, len(self._transitions))) is None:
                try:
                    for _ in range(self._progress.missing(self.quota)):
                        self._step(source)
                except EnvRaised as raised:
                    self._raise(raised)
                    source = steps(host, host, self._stage, self._rules)
        finally:  # weights may be others in the next call
            host.flush()
            for rows in self._policies.values():
                rows.add_values()
        return self._handed_out(cuts, complete)

    @property
    def waiting(self) -> int:
        """Env steps that were made, and not handed out yet."""
        return self._progress.waiting

    def start_over(self) -> None:
        """Give up all running episodes; the next step is the first of others."""
        everyone = range(len(self._slots.lengths))
        for env in everyone:
            if env not in self._stage.due:
                self._give_up(env)
        self._failures.start_over()
        self._created.clear()
        self._stage.due = list(everyone)

    def discard_waiting(self) -> None:
        """What waits is not handed out any more."""
        self.counts["env_steps_discarded"] += self._progress.waiting
        self._progress.hand_out(self._progress.clocks.copy())
        self._end(())

    def _rows_of(self, policy: str | int) -> PolicyRows:
        """The rows of a policy, by its id those of the policy that has it now."""
        if isinstance(policy, int):
            return self._policies[policy]
        for rows in self._policies.values():
            if rows.policy_id == policy:
                return rows
        number = max(self._policies, default=-1) + 1
        self._policies[number] = PolicyRows(self._worker, policy, number)
        return self._policies[number]

    def _let_go_of_replaced(self) -> None:
        """Where another policy has got the id to which agents are bound, their episodes are discarded."""
        now, table = self._worker.policy_map, self._slots.table
        for rows in [
            each for each in self._policies.values() if now.get(each.policy_id, each.policy) is not each.policy
        ]:
            bound = np.unique(table["env"][table["policy"] == rows.number]).tolist()
            for env in bound:
                if env not in self._stage.due:
                    self._discard(env)
            self._stage.due = sorted({*self._stage.due, *bound})
            self._transitions.take(self._transitions.table["policy"] == rows.number)
            del self._policies[rows.number]

    def _step(self, source: Iterator[Step]) -> None:
        """Make a step of all envs; what it led to is written before anything is raised."""
        self._failed_at.clear()
        self._laps.step()
        try:
            self._write(next(source))
            self._laps.lap("env_wait")
        finally:
            if self._failures.raised:
                raised, self._failures.raised = self._failures.raised, []
                self._report(raised)
        if self._failures.fatal is not None:
            raise self._failures.fatal

    def _raise(self, raised: EnvRaised) -> None:
        """Raise what an env has raised, with a note of where, unless that is allowed."""
        failures, env = self._failures, raised.env
        fatal, failures.fatal = failures.fatal, None
        if failures.lost:
            self.start_over()
        if fatal is not None:
            seed, step = self._host.seed_of(env), self._failed_at.pop(env, None)
            where = "a reset" if step is None else f"step {step} of its episode, counted from 0"
            raised.cause.add_note(f"raised by sub-env {env} (last seed {seed}) in {where}")
            raise raised.cause from raised.cause.__cause__

    def _write(self, step: Step) -> None:
        """Write down what a step led to, then call who wants to be called."""
        slots, progress = self._slots, self._progress
        self._host.settle(step)
        self._host.note(step.info)
        slots.lengths += 1
        slots.clocks += 1
        if step.void:
            slots.lengths[list(step.void)] -= 1
            slots.clocks[list(step.void)] -= 1
        over = step.ended.envs.tolist()
        for env in [env for env in step.void if env in over]:
            over.remove(env)
            self._failed_at[env] = int(slots.lengths[env])
            self._give_up(env)
        for env in over:
            progress.over[env] = progress.clocks[env]
            if self.quota.by_agents:
                progress.agents_over += self._waiting(self._episode(env))[1]
        if self.quota.whole:
            self._warn_of_long()
        try:
            if self._listening["on_episode_step"]:
                stepped = [env for env in range(len(slots.lengths)) if env not in step.void]
                self._call("on_episode_step", stepped, slots.episodes)
        finally:
            if self._watched:
                self._ended += [(env, self._episode(env)) for env in over]
                if not self._maker.listeners:  # else when their rows were post-processed
                    self._end(())
            elif over:
                self._report_ends([self._metrics(env) for env in over])

    def _end(self, waiting: Collection[int]) -> None:
        """Call `on_episode_end` of the episodes that have ended, but for those that wait; then report them."""
        ended = [(env, episode) for env, episode in self._ended if episode.episode_id not in waiting]
        if not ended:
            return
        self._ended = [(env, episode) for env, episode in self._ended if episode.episode_id in waiting]
        try:
            for env, episode in ended:
                self._call("on_episode_end", [env], {env: episode})
        finally:  # callbacks may have added to what is reported
            self._report_ends([RolloutMetrics.of(episode, self._laps.get()) for _, episode in ended])

    def _report_ends(self, ended: list[RolloutMetrics]) -> None:
        self.counts["episodes"] += len(ended)
        self._envs.log.add(ended)

    def _metrics(self, env: int) -> RolloutMetrics:
        """What is reported of an episode of one agent that nobody has looked at."""
        record = self._slots.table[env]
        total = float(record["total"])
        return RolloutMetrics(
            int(self._slots.lengths[env]),
            total,
            {(LONE_AGENT, self._lone): total},
            perf_stats=self._laps.get(),
            episode_reward_raw=float(record["raw"]),
            env_index=env,
        )

    def _warn_of_long(self) -> None:
        """Warn, once per sub-env, of episodes that are waited for in vain."""
        lengths, most = self._slots.lengths, max(LONG, 10 * self.quota.length)
        for env in (lengths > most).nonzero()[0].tolist() if lengths.max() > most else ():
            if env not in self._warned:
                self._warned.add(env)
                warn(
                    f"the episode of sub-env {env} has lasted {lengths[env]:,} steps, and none of them is handed out "
                    "before it ends; limit episodes (gymnasium's TimeLimit), or set batch_mode='truncate_episodes'"
                )

    def _begin(self, envs: Sequence[int]) -> tuple[Sequence[int], None]:
        """Episodes are about to begin in these envs."""
        worker, lone = self._worker, self._lone
        for env in envs:
            if env not in self._created:
                self._running[env] = number = next(self._envs.episode_ids)
                self._created.add(env)
                if not self._watched:
                    self._host.enter(env, number, None)
                    continue
                mapping = mapper(worker.policy_mapping_fn) if lone is None else lambda *_, **__: lone
                episode = Episode(number, env, self._slots, worker.policy_map, mapping, worker)
                self._host.enter(env, number, episode)
                self._episodes[number] = episode
                self._call("on_episode_created", [env], self._slots.episodes)
        return envs, None

    def _announce(self, env: int) -> None:
        """The policies are about to be asked for the first step of an episode."""
        self._created.discard(env)
        self._call("on_episode_start", [env], self._slots.episodes)

    def _call(self, event: str, envs: Sequence[int], episodes: Any) -> None:
        """Call who listens to an event, with the episode of each env, by env, or with what was raised in its place."""
        listening, worker, view = self._listening[event], self._worker, self._envs.view
        for env in envs if listening else ():
            shown = view.envs
            for listener in listening:
                listener(
                    episode=episodes[env],
                    worker=worker,
                    env_runner=worker,
                    base_env=view,
                    env=shown[env] if env < len(shown) else None,
                    policies=worker.policy_map,
                    env_index=env,
                )

    def _episode(self, env: int) -> Episode:
        episode = self._slots.episodes[env]
        assert episode is not None
        return episode

    def _give_up(self, env: int) -> None:
        """An episode ends before its time: with its last good row, or, where only whole ones count, without a trace."""
        if self.quota.whole:
            self._discard(env)
            return
        self._host.flush()
        table, slots = self._transitions.table, self._slots.table
        for slot in np.flatnonzero((slots["env"] == env) & (slots["policy"] != NONE) & ~slots["over"]).tolist():
            mine = np.flatnonzero((table["episode"] == self._running[env]) & (table["agent"] == slots["agent"][slot]))
            table["truncated"][mine[-1:]] = True
            slots["over"][slot], slots["acted"][slot] = True, NONE

    def _discard(self, env: int) -> None:
        """All that is here of the running episode of an env is not handed out."""
        self._host.flush()
        self._transitions.take(self._transitions.table["episode"] == self._running[env])
        self.counts["env_steps_discarded"] += self._progress.discard(env, int(self._slots.lengths[env]))

    def _handed_out(self, cuts: Array, complete: Callable[[dict[str, SampleBatch], int], T]) -> T:
        """What is made of all that lies before the cuts."""
        table, env_steps = self._transitions.table, int((cuts - self._progress.handed).sum())
        taken = self._transitions.take(table["clock"] < cuts[table["env"]])
        self._progress.hand_out(cuts)
        try:
            batches = self._maker.make(list(self._policies.values()), taken)
            if self._ended:
                self._end({*self._transitions.table["episode"].tolist()})
            n_rows = sum(batch.count for batch in batches.values())
            whole = complete(batches, env_steps)
        except BaseException:
            self.counts["env_steps_discarded"] += env_steps
            raise
        finally:
            self._make_room()
        self.counts["env_steps_sampled"] += env_steps
        self.counts["agent_steps_sampled"] += n_rows
        return whole

    def _make_room(self) -> None:
        """Forget rows, infos, episodes and policies to which nothing refers any more."""
        tables = self._slots.table, self._transitions.table
        for number, rows in list(self._policies.items()):
            own = [(table, table["policy"] == number) for table in tables]
            if not (any(which.any() for _, which in own) or rows.policy_id in self._worker.policy_map):
                del self._policies[number]
                continue
            referring = [(table[name], which) for table, which in own for name in _ROWS]
            moved = rows.keep(np.concatenate([field[which] for field, which in referring]))
            for field, which in referring:
                field[which] = moved[field[which]]
        slots, waiting = tables
        for step in self._host.infos.keys() - {*waiting["step"].tolist(), *slots["step"].tolist()}:
            del self._host.infos[step]
        for episode in self._episodes.keys() - {*self._running, *waiting["episode"].tolist()}:
            del self._episodes[episode]

    def _waiting(self, episode: Episode) -> tuple[int, int]:
        """How many env steps, and how many transitions, of a running episode were not handed out yet."""
        self._host.flush()
        env = episode.env_id
        waits = int(self._progress.clocks[env] - self._progress.handed[env])
        agent_steps = int(np.count_nonzero(self._transitions.table["episode"] == episode.episode_id))
        return min(int(self._slots.lengths[env]), waits), agent_steps

    def _infos_of(self, records: Array) -> list[Info]:
        """What the envs said to the agents of these transitions when they ended."""
        return [
            self._host.info_at(step, env, self._agent(episode, agent))
            for step, env, episode, agent in zip(*(records[name].tolist() for name in _WHERE), strict=True)
        ]

    def _agent(self, episode: int, place: int) -> Any:
        """The agent of this place in the order of appearance."""
        return self._episodes[episode].get_agents()[place] if self._lone is None else LONE_AGENT

    def _report(self, raised: Sequence[tuple[int, Exception]]) -> None:
        """Count what envs have raised, and call `on_episode_end` of their episodes."""
        self.counts["episodes_faulty"] += len(raised)
        self._envs.log.add(
            [RolloutMetrics(episode_faulty=True, env_index=env, error=repr(error)) for env, error in raised]
        )
        for env, error in raised:
            self._call("on_episode_end", [env], {env: error})
