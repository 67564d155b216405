"""Collects the batches of a call of `sample()`: it steps until there are enough transitions, then makes the batches.

    steps() ─▶ slots: rewards, ends ─▶ transitions ─▶ … ─▶ transitions before the cuts ─▶ batches
       ▲                                                            │
    policies: rows of observations and answers ◀── rows that are no longer referred to make room

No transition is lost if an env, policy or callback raises, and each has the version of the policy that made it.

A batch has a policy's rows by sub-env, episode, agent and time, in chunks of one version each. A column is one gather
of rows. Then chunks are numbered, and post-processed: one by one if a method is overridden, else all at once.

    chunk ─▶ policy.postprocess_trajectory ─▶ on_postprocess_trajectory ─▶ its rows in the batch
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from swath.errors import warn
from swath.rollout.hosts.base import EnvRaised
from swath.rollout.loop import LoopState, Rules, Step, StepLimit, steps
from swath.rollout.spaces import Array, Leaves
from swath.rollout_workers.batches.names import STATE_IN, STATE_OUT, ColumnNames, is_state_in
from swath.rollout_workers.batches.sample_batch import SampleBatch, concat
from swath.rollout_workers.callbacks import listener
from swath.rollout_workers.config.policy_spec import with_worker_argument
from swath.rollout_workers.metrics import RolloutMetrics
from swath.rollout_workers.nests import map_nest, object_array
from swath.rollout_workers.policy import Policy
from swath.rollout_workers.postprocessing import Estimator, estimate, values_after
from swath.rollout_workers.sampling.agents import Agents, LoneAgents, ManyAgents
from swath.rollout_workers.sampling.policy_rows import OPTIONAL_FIELDS, PolicyRows, as_column
from swath.rollout_workers.sampling.slots import Episode, Quota, Slots, records_at

# By agent: policy id, policy, and its rows of an episode before they are post-processed.
Originals: TypeAlias = dict[Any, tuple[str, Any, SampleBatch]]

_METHOD = "postprocess_trajectory"
_CHUNK = "episode", "agent", "version"

# Columns that are a field of the transitions.
_ALWAYS = {
    ColumnNames.REWARDS: "reward",
    ColumnNames.TERMINATEDS: "terminated",
    ColumnNames.TRUNCATEDS: "truncated",
    ColumnNames.EPS_ID: "episode",
    ColumnNames.AGENT_INDEX: "agent",
    ColumnNames.POLICY_VERSION: "version",
}


class RawBatch(NamedTuple):
    """Transitions of one policy, in order, and their batch.

    Attributes:
        rows: of the policy.
        records: the transitions.
        starts: the first of each chunk.
        batch: not post-processed yet.
    """

    rows: PolicyRows
    records: Array
    starts: Array
    batch: SampleBatch


class BatchMaker:
    """Makes batches of transitions.

    Args:
        worker: its policies post-process their rows.
        slots: have the transitions.
        unrolls: numbers of chunks.

    Attributes:
        listener: called with each chunk; None if the callback is not overridden.
    """

    def __init__(self, worker: Any, slots: Slots, unrolls: Iterator[int]) -> None:
        self._worker, self._slots, self._unrolls = worker, slots, unrolls
        self.listener = listener(worker.callbacks, "on_postprocess_trajectory")

    def make(self, transitions: Array) -> dict[str, SampleBatch]:
        """Return the batches by policy id; a policy without rows has none.

        Raises:
            TypeError: a policy's `postprocess_trajectory` returned no batch.
            Exception: what a policy or a listener raised.
        """
        parts = [
            part
            for number, rows in self._slots.policies.items()
            if (part := self._raw(rows, records_at(transitions, transitions["policy"] == number))) is not None
        ]
        at_once = [part for part in parts if self.listener is None and _adds_by_fragments(part.rows.policy)]
        originals = self._originals(parts) if len(at_once) < len(parts) else {}
        batches = {}
        for part in parts:
            policy = part.rows.policy
            if part in at_once:
                batch, lengths = _add_estimates(part), np.diff(part.starts, append=len(part.records)).tolist()
            else:
                chunks = [*self._chunks(part, originals)]
                batch, lengths = concat(chunks), [chunk.count for chunk in chunks]
            if batch.count:
                batches[part.rows.policy_id] = _add_sequences(policy, batch, lengths)
        return batches

    def _raw(self, policy: PolicyRows, transitions: Array) -> RawBatch | None:
        """Return a policy's transitions, without the chunks whose last info switches training off."""
        # stable: they are in order of time already
        order = np.lexsort((transitions["agent"], transitions["episode"], transitions["env"]))
        records = records_at(transitions, order)
        starts = _starts(records, _CHUNK)
        lengths = np.diff(starts, append=len(records))
        last = policy.infos_at(records["row"][starts + lengths - 1])
        kept = np.array([info.get("training_enabled", True) for info in last], np.bool_)
        records = records_at(records, np.repeat(kept, lengths))
        if not len(records):
            return None
        starts, columns = _starts(records, _CHUNK), self._columns(policy, records)
        numbers = [next(self._unrolls) for _ in starts]
        columns[ColumnNames.UNROLL_ID] = np.repeat(numbers, np.diff(starts, append=len(records)))
        return RawBatch(policy, records, starts, SampleBatch(columns, _num_grad_updates=policy.policy.num_grad_updates))

    def _columns(self, policy: PolicyRows, records: Array) -> dict[str, Any]:
        wanted, before = policy.wanted.batch, records["before"]
        plain = _ALWAYS | {name: field for name, field in OPTIONAL_FIELDS.items() if name in wanted}
        columns = {
            ColumnNames.OBS: policy.observations(records["acted"]),
            ColumnNames.NEXT_OBS: policy.observations(records["row"]),
            **policy.answers(records["answer"]),
            **policy.states(before),
            ColumnNames.T: records["clock"] - records["start"],
            **{name: as_column(records[field]) for name, field in plain.items()},
        }
        if ColumnNames.PREV_ACTIONS in wanted:
            columns[ColumnNames.PREV_ACTIONS] = policy.previous(before, ColumnNames.ACTIONS)
        if ColumnNames.INFOS in wanted:
            columns[ColumnNames.INFOS] = object_array(policy.infos_at(records["row"]))
        if ColumnNames.AGENT_ID in wanted:
            columns[ColumnNames.AGENT_ID] = object_array([self._episode_and_agent(record)[1] for record in records])
        return columns

    def _chunks(self, part: RawBatch, originals: Mapping[int, Originals]) -> Iterator[SampleBatch]:
        """Yield the chunks, each post-processed by itself."""
        policy_id, policy, worker = part.rows.policy_id, part.rows.policy, self._worker
        for start, stop in pairwise([*part.starts.tolist(), len(part.records)]):
            episode, agent = self._episode_and_agent(part.records[start])
            chunk = processed = part.batch[start:stop]
            others = {other: rows for other, rows in originals[episode.episode_id].items() if other != agent}
            if _defining_class(policy, _METHOD) is not Policy:
                processed = policy.postprocess_trajectory(chunk, dict(others), episode)
            if not isinstance(processed, SampleBatch):
                raise TypeError(f"{type(policy).__name__}.{_METHOD} returned {processed!r}; it must return the batch")
            if self.listener is not None:
                self.listener(
                    worker=worker,
                    env_runner=worker,
                    episode=episode,
                    agent_id=agent,
                    policy_id=policy_id,
                    policies=worker.policy_map,
                    postprocessed_batch=processed,
                    original_batches={**others, agent: (policy_id, policy, chunk)},
                )
            yield processed

    def _originals(self, parts: Sequence[RawBatch]) -> dict[int, Originals]:
        """Return the rows of each agent, by episode, whatever versions acted."""
        originals: dict[int, Originals] = {}
        for part in parts:
            for start, stop in pairwise([*_starts(part.records, _CHUNK[:2]).tolist(), len(part.records)]):
                episode, agent = self._episode_and_agent(part.records[start])
                rows = part.rows.policy_id, part.rows.policy, part.batch[start:stop]
                originals.setdefault(episode.episode_id, {})[agent] = rows
        return originals

    def _episode_and_agent(self, record: Any) -> tuple[Episode, Any]:
        """Return the episode and the agent of a transition."""
        episode = self._slots.known[int(record["episode"])]
        return episode, episode.get_agents()[record["agent"]]


def _starts(records: Array, fields: Sequence[str]) -> Array:
    """Return where one of the fields changes, the first record included."""
    changes = np.logical_or.reduce([records[name][1:] != records[name][:-1] for name in fields])
    return np.flatnonzero(np.append(True, changes)[: len(records)])


def _defining_class(policy: Any, name: str) -> type | None:
    """Return the class that defines a method or property of a policy."""
    return next((kind for kind in type(policy).__mro__ if name in vars(kind)), None)


def _adds_by_fragments(policy: Any) -> bool:
    """Return whether the class that defines a policy's `postprocess_trajectory` has an `estimator` for the same."""
    kind = _defining_class(policy, _METHOD)
    return kind is Policy or (kind is _defining_class(policy, "estimator") and policy.estimator is not None)


def _add_estimates(part: RawBatch) -> SampleBatch:
    """Return the batch, with advantages if the policy adds some."""
    policy, batch, ends = part.rows.policy, part.batch, np.zeros(part.batch.count, np.bool_)
    estimator: Estimator | None = getattr(policy, "estimator", None)
    if estimator is None:
        return batch
    ends[part.starts[1:] - 1] = ends[-1] = True
    open_ends = ends & ~batch[ColumnNames.TERMINATEDS]
    values = batch[ColumnNames.VF_PREDS] if estimator.use_critic else None
    after = values_after(values, ends, open_ends, 0 if values is None else _open_values(policy, batch, open_ends))
    if estimator.use_critic:
        batch[ColumnNames.VALUES_BOOTSTRAPPED] = after
    estimates = estimate(batch[ColumnNames.REWARDS], values, after, ends, estimator)
    batch[ColumnNames.ADVANTAGES], batch[ColumnNames.VALUE_TARGETS] = estimates
    return batch


def _open_values(policy: Any, batch: SampleBatch, open_ends: Array) -> Any:
    """Return the values of the states after these rows, by one call of the critic."""
    if not open_ends.any():
        return 0
    columns = {ColumnNames.OBS: batch[ColumnNames.NEXT_OBS]}
    columns |= {STATE_IN + name.removeprefix(STATE_OUT): batch[name] for name in batch if name.startswith(STATE_OUT)}
    reached = {name: map_nest(lambda leaf: leaf[open_ends], column) for name, column in columns.items()}
    return np.asarray(policy.compute_values(reached), dtype=np.float32).reshape(-1)


def _add_sequences(policy: Any, batch: SampleBatch, lengths: Sequence[int]) -> SampleBatch:
    """Add `seq_lens` to the batch of a recurrent policy, and keep one row of states per sequence."""
    if not policy.is_recurrent():
        return batch
    limit = policy.config["model"]["max_seq_len"]
    seq_lens = [min(limit, length - begin) for length in lengths for begin in range(0, length, limit)]
    first = np.cumsum([0, *seq_lens[:-1]])
    columns = {
        name: map_nest(lambda leaf: leaf[first], column) if is_state_in(name) else column
        for name, column in batch.items()
    }
    columns[ColumnNames.SEQ_LENS] = np.array(seq_lens, dtype=np.int32)
    return SampleBatch(columns, _max_seq_len=limit, _num_grad_updates=batch.num_grad_updates)


T = TypeVar("T")

# Callbacks that take episodes: before the reset, before the first action, after each step, at the end.
_EVENTS = ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end")

# Steps after which an episode is warned of, if only whole ones are handed out.
LONG_EPISODE = 5_000


class Sampler:
    """Collects from B envs. Used by one thread at a time.

    Args:
        envs: of a worker.
        lone_policy: the id of the policy that acts in all envs, which have one agent each; None: they have several.
        quota: when a batch is complete.

    Attributes:
        counts: numbers of steps and episodes.
        agents: the loop's actor.
    """

    def __init__(self, envs: Any, lone_policy: str | None, quota: Quota) -> None:
        self.counts, self._envs, self._worker, self._quota = envs.counts, envs, envs.worker, quota
        self._failures, self._timer, n_envs = envs.failures, envs.timer, envs.host.spec.num_envs
        self._slots = Slots(envs.worker, n_envs)
        self._lone_rows = None if lone_policy is None else self._slots.rows_of(lone_policy)
        kind: type[Agents] = ManyAgents if lone_policy is None else LoneAgents
        self.agents = kind(envs.host, self._slots, envs.timer, self._announce)
        self._maker = BatchMaker(envs.worker, self._slots, envs.unroll_ids)
        self._listeners = {event: listener(envs.worker.callbacks, event) for event in _EVENTS}
        spec = envs.host.spec.observation
        zeros: Leaves = [np.zeros((n_envs, *leaf.shape), leaf.dtype) for leaf in spec] or [[{}] * n_envs]
        self._state = LoopState(zeros, list(range(n_envs)))
        self._rules = Rules(StepLimit(envs.host.spec), self._begin, envs.failures)
        self._ended: list[Episode] = []
        self._warned: set[int] = set()

    def sample(
        self,
        quota: Quota,
        version: int,
        explore: bool | None,
        complete: Callable[[dict[str, SampleBatch], int], T],
    ) -> T:
        """Collect until the quota is reached; return what `complete` makes of the batches.

        Args:
            quota: when this batch is complete, and later ones until another quota is given.
            version: of the policies.
            explore: whether actions are sampled; None: as the settings of each policy say.
            complete: gets the batches by policy id, and the number of their env steps.

        Raises:
            Exception: what an env, a policy, a filter or a callback raised, as its own type with a note. The next call
                goes on, and hands out the transitions that were made; they are lost only if making their batch fails.
        """
        self._quota, slots = quota, self._slots
        self._discard_replaced()
        slots.prepare(version, explore)
        source = steps(self._envs.host, self.agents, self._state, self._rules)
        try:
            while (cuts := slots.cuts(self._quota)) is None:
                try:
                    for _ in range(slots.missing(self._quota)):
                        self._step(source)
                except EnvRaised as raised:
                    self._raise(raised)
                    source = steps(self._envs.host, self.agents, self._state, self._rules)
        finally:  # the next call may have other weights
            for rows in slots.policies.values():
                rows.add_values()
        return self._hand_out(cuts, complete)

    def use_policy_of(self, policies: Mapping[str, Any]) -> str | None:
        """Let the worker's first policy act in envs with one agent if the acting one was removed; return its id.

        Then running episodes are given up, and transitions that were not handed out are discarded.
        """
        rows = self._lone_rows
        if rows is not None and policies and policies.get(rows.policy_id) is not rows.policy:
            self.start_over()
            self.discard_waiting()
            self._discard_replaced()
            rows = self._lone_rows = self._slots.rows_of(next(iter(policies)))
        return None if rows is None else rows.policy_id

    def start_over(self) -> None:
        """Give up all running episodes; the next step is the first of new ones."""
        all_envs = range(len(self._slots.episodes))
        for env in all_envs:
            if env not in self._state.ended_envs:
                self._give_up(env)
        self._failures.give_up_episodes()
        self._state.ended_envs = list(all_envs)

    def discard_waiting(self) -> None:
        """Discard all transitions that were not handed out."""
        _, env_steps = self._slots.hand_out(self._slots.clocks.copy())
        self.counts["env_steps_discarded"] += env_steps
        self._end(())

    def _discard_replaced(self) -> None:
        """Discard the episodes of agents whose policy id belongs to another policy now."""
        now, slots = self._worker.policy_map, self._slots
        for number, rows in [*slots.policies.items()]:
            if now.get(rows.policy_id, rows.policy) is not rows.policy:
                bound = np.unique(slots.table["env"][slots.table["policy"] == number]).tolist()
                for env in {*bound}.difference(self._state.ended_envs):
                    self.counts["env_steps_discarded"] += slots.discard(env)
                self._state.ended_envs = sorted({*self._state.ended_envs, *bound})
                slots.remove(slots.transitions["policy"] == number)
                del slots.policies[number]

    def _step(self, source: Iterator[Step]) -> None:
        """Make a step of all envs, and record it before anything is raised."""
        failures = self._failures
        self._timer.step()
        try:
            self._write(next(source))
            self._timer.lap("env_wait")
        finally:
            while failures.errors:
                env, error = failures.errors.pop(0)
                self.counts["episodes_faulty"] += 1
                self._envs.log.add([RolloutMetrics(episode_faulty=True, env_index=env, error=repr(error))])
                self._call("on_episode_end", env, error)
        if failures.fatal is not None:
            raise failures.fatal

    def _raise(self, raised: EnvRaised) -> None:
        """Raise what an env has raised, with a note of where, unless that is allowed."""
        failures, env, episode = self._failures, raised.env, self._slots.episode(raised.env)
        where = f"step {episode.length} of its episode, counted from 0" if episode.has_begun else "a reset"
        is_fatal = failures.take_fatal() is not None
        if failures.episodes_lost:
            self.start_over()
        if is_fatal:
            raised.cause.add_note(f"raised by sub-env {env} (last seed {self._envs.host.seed_of(env)}) in {where}")
            raise raised.cause from raised.cause.__cause__

    def _write(self, step: Step) -> None:
        """Record a step, then call the callbacks."""
        slots, ended = self._slots, step.ends.envs.tolist()
        self.agents.settle(step)
        slots.count(step)
        for env in step.void:
            if env in ended:
                ended.remove(env)
                self._give_up(env)
        if self._quota.whole_episodes:
            self._warn_of_long()
        try:
            for env in range(len(slots.episodes)) if self._listeners["on_episode_step"] else ():
                if env not in step.void:
                    self._call("on_episode_step", env, slots.episodes[env])
        finally:
            for env in ended:
                slots.over[env] = slots.clocks[env]
                slots.episode(env).keep()
                self._ended.append(slots.episode(env))
            if ended and self._maker.listener is None:  # otherwise after their rows were post-processed
                self._end(())

    def _end(self, waiting: Collection[int]) -> None:
        """Call `on_episode_end` of ended episodes without waiting transitions, and report them."""
        ended, perf_stats = [episode for episode in self._ended if episode.episode_id not in waiting], self._timer.get()
        self._ended = [episode for episode in self._ended if episode.episode_id in waiting]
        try:
            for episode in ended:
                self._call("on_episode_end", episode.env_id, episode)
        finally:  # callbacks may have added to what is reported
            self.counts["episodes"] += len(ended)
            self._envs.log.add([RolloutMetrics.of(episode, perf_stats) for episode in ended])

    def _warn_of_long(self) -> None:
        """Warn, once per sub-env, of episodes that do not seem to end."""
        lengths = self._slots.clocks - self._slots.episode_starts
        for env in np.flatnonzero(lengths > max(LONG_EPISODE, 10 * self._quota.length)).tolist():
            if env not in self._warned:
                self._warned.add(env)
                way_out = "limit episodes (gymnasium's TimeLimit), or set batch_mode='truncate_episodes'"
                lasts = f"has lasted {lengths[env]:,} steps, and is handed out only when it ends"
                warn(f"the episode of sub-env {env} {lasts}; {way_out}")

    def _begin(self, envs: Sequence[int]) -> tuple[Sequence[int], None]:
        """Create the next episodes in these envs, unless they are created and wait for their reset."""
        worker, slots, lone_rows = self._worker, self._slots, self._lone_rows
        for env in envs:
            running = slots.episodes[env]
            if running is None or running.has_begun:
                mapping = with_worker_argument(worker.policy_mapping_fn) if lone_rows is None else lone_rows.map_agent
                number = next(self._envs.episode_ids)
                episode = Episode(number, env, slots, worker, worker.policy_map, mapping)
                self.agents.enter(env, episode)
                self._call("on_episode_created", env, episode)
        return envs, None

    def _announce(self, env: int) -> None:
        """Call `on_episode_start`, before the policies act for the first time in an episode."""
        self._call("on_episode_start", env, self._slots.episodes[env])

    def _call(self, event: str, env: int, episode: Any) -> None:
        """Call the listener to an event, with the episode of an env, or with an exception in its place."""
        worker, callback = self._worker, self._listeners[event]
        if callback is not None:
            envs = self._envs.envs
            callback(
                episode=episode,
                worker=worker,
                env_runner=worker,
                base_env=self._envs,
                env=envs[env] if env < len(envs) else None,
                policies=worker.policy_map,
                env_index=env,
            )

    def _give_up(self, env: int) -> None:
        """End an episode with its last good row, or discard it if only whole episodes count."""
        if self._quota.whole_episodes:
            self.counts["env_steps_discarded"] += self._slots.discard(env)
        else:
            self._slots.truncate(env)

    def _hand_out(self, cuts: Array, complete: Callable[[dict[str, SampleBatch], int], T]) -> T:
        """Hand out all transitions before the cuts, and return what `complete` makes of their batches."""
        slots = self._slots
        transitions, env_steps = slots.hand_out(cuts)
        try:
            batches = self._maker.make(transitions)
            self._end({*slots.transitions["episode"].tolist()})
            n_rows = sum(batch.count for batch in batches.values())
            result = complete(batches, env_steps)
        except BaseException:
            self.counts["env_steps_discarded"] += env_steps
            raise
        finally:
            slots.make_room()
        self.counts["env_steps_sampled"] += env_steps
        self.counts["agent_steps_sampled"] += n_rows
        return result
