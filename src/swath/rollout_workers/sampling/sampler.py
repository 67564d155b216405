"""Collects the batches of a call of `sample()`: it steps until there are enough transitions, then makes the batches.

    steps() ─▶ agents: rewards, ends ─▶ rows of policies ─▶ … ─▶ transitions before the cuts ─▶ batches

No transition is lost if an env, policy or callback raises, and each has the version of the policy that made it.

A batch has a policy's rows by sub-env, episode, agent and time, in chunks of one version each, which are numbered. All
are post-processed at once; then each by itself, if a policy's method is overridden, or a callback listens.

    chunk ─▶ policy.postprocess_trajectory ─▶ on_postprocess_trajectory ─▶ its rows in the batch
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from swath.errors import warn
from swath.rollout.hosts.base import EnvRaised
from swath.rollout.loop import LoopState, Rules, Step, StepLimit, steps
from swath.rollout.spaces import Array, Leaves
from swath.rollout_workers.batches.names import STATE_IN, STATE_OUT, ColumnNames, is_state_in
from swath.rollout_workers.batches.sample_batch import MultiAgentBatch, SampleBatch, concat
from swath.rollout_workers.callbacks import listener
from swath.rollout_workers.config.policy_spec import map_to_default, with_worker_argument
from swath.rollout_workers.metrics import RolloutMetrics
from swath.rollout_workers.nests import map_nest, object_array
from swath.rollout_workers.policy import Policy
from swath.rollout_workers.postprocessing import Estimator, estimate, values_after
from swath.rollout_workers.sampling.agents import LoneAgents, ManyAgents
from swath.rollout_workers.sampling.policy_rows import AGENT, EPISODE, VERSION, PolicyRows, infos_at, labels_of, select
from swath.rollout_workers.sampling.slots import LONE_AGENT, Episode, Quota, Slots

# By agent: policy id, policy, and its rows of an episode before they are post-processed.
Originals: TypeAlias = dict[Any, tuple[str, Any, SampleBatch]]

_METHOD = "postprocess_trajectory"
_CHUNK = EPISODE, AGENT, VERSION


class RawBatch(NamedTuple):
    """Transitions of one policy, in order, and their batch.

    Attributes:
        rows: of the policy.
        labels: of the transitions.
        starts: the first of each chunk.
        batch: not post-processed yet.
    """

    rows: PolicyRows
    labels: Array
    starts: Array
    batch: SampleBatch


class BatchMaker:
    """Makes batches of transitions.

    Args:
        worker: its policies post-process their rows.
        slots: know the episodes.
        unrolls: numbers of chunks.

    Attributes:
        listener: called with each chunk; None if the callback is not overridden.
    """

    def __init__(self, worker: Any, slots: Slots, unrolls: Iterator[int]) -> None:
        self._worker, self._slots, self._unrolls = worker, slots, unrolls
        self.listener = listener(worker.callbacks, "on_postprocess_trajectory")

    def make(self, parts: Sequence[tuple[PolicyRows, Leaves]]) -> dict[str, SampleBatch]:
        """Return the batches by policy id; a policy without rows has none.

        Raises:
            TypeError: a policy's `postprocess_trajectory` returned no batch.
            Exception: what a policy or a listener raised.
        """
        raws = [raw for rows, part in parts if (raw := self._raw_batch(rows, part)) is not None]
        looks = self.listener is not None or not all(_adds_advantages(raw.rows.policy) for raw in raws)
        originals, batches = self._originals(raws) if looks else {}, dict[str, SampleBatch]()
        for raw in raws:
            policy, batch, lengths = raw.rows.policy, raw.batch, np.diff(raw.starts, append=len(raw.labels)).tolist()
            if at_once := _adds_advantages(policy):
                _add_estimates(raw)
            if self.listener is not None or not at_once:
                chunks = [*self._chunks(raw, originals, at_once=at_once)]
                batch, lengths = concat(chunks), [chunk.count for chunk in chunks]
            if batch.count:
                batches[raw.rows.policy_id] = _add_sequences(policy, batch, lengths)
        return batches

    def _raw_batch(self, rows: PolicyRows, part: Leaves) -> RawBatch | None:
        """Return a policy's transitions, without the chunks whose last info switches training off."""
        labels, starts, lengths = _cut(part)
        last = infos_at(part, starts + lengths - 1)
        is_kept = np.array([info.get("training_enabled", True) for info in last], np.bool_)
        if not is_kept.all():
            part = select(part, np.repeat(is_kept, lengths))
            labels, starts, lengths = _cut(part)
        if not len(labels):
            return None
        columns, wanted = rows.columns(part), rows.wanted.batch
        if ColumnNames.INFOS in wanted:
            columns[ColumnNames.INFOS] = object_array(infos_at(part))
        if ColumnNames.AGENT_ID in wanted:
            columns[ColumnNames.AGENT_ID] = object_array([self._episode_and_agent(label)[1] for label in labels])
        columns[ColumnNames.UNROLL_ID] = np.repeat([next(self._unrolls) for _ in starts], lengths)
        return RawBatch(rows, labels, starts, SampleBatch(columns, _num_grad_updates=rows.policy.num_grad_updates))

    def _chunks(self, raw: RawBatch, originals: Mapping[int, Originals], *, at_once: bool) -> Iterator[SampleBatch]:
        """Yield the chunks of a batch, each post-processed by itself, unless that was done at once."""
        policy_id, policy, worker = raw.rows.policy_id, raw.rows.policy, self._worker
        for start, stop in pairwise([*raw.starts.tolist(), len(raw.labels)]):
            episode, agent = self._episode_and_agent(raw.labels[start])
            chunk = processed = raw.batch[start:stop]
            others = {other: rows for other, rows in originals[episode.episode_id].items() if other != agent}
            if not at_once:
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

    def _originals(self, raws: Sequence[RawBatch]) -> dict[int, Originals]:
        """Return the rows of each agent, by episode, whatever versions acted."""
        originals: dict[int, Originals] = {}
        for raw in raws:
            for start, stop in pairwise([*_starts(raw.labels, _CHUNK[:2]).tolist(), len(raw.labels)]):
                episode, agent = self._episode_and_agent(raw.labels[start])
                rows = raw.rows.policy_id, raw.rows.policy, raw.batch[start:stop]
                originals.setdefault(episode.episode_id, {})[agent] = rows
        return originals

    def _episode_and_agent(self, labels: Array) -> tuple[Episode, Any]:
        """Return the episode and the agent of a transition."""
        episode = self._slots.by_id[int(labels[EPISODE])]
        return episode, episode.get_agents()[labels[AGENT]]


def _starts(labels: Array, columns: Sequence[int]) -> Array:
    """Return where one of the labels changes, the first transition included."""
    changes = (labels[1:, columns] != labels[:-1, columns]).any(axis=1)
    return np.flatnonzero(np.append(True, changes)[: len(labels)])


def _cut(part: Leaves) -> tuple[Array, Array, Array]:
    """Return the labels of a part's transitions, where its chunks start, and their lengths."""
    labels = labels_of(part)
    starts = _starts(labels, _CHUNK)
    return labels, starts, np.diff(starts, append=len(labels))


def _defining_class(policy: Any, name: str) -> type | None:
    """Return the class that defines a method or property of a policy."""
    return next((kind for kind in type(policy).__mro__ if name in vars(kind)), None)


def _adds_advantages(policy: Any) -> bool:
    """Return whether the class that defines a policy's `postprocess_trajectory` has an `estimator` for the same."""
    kind = _defining_class(policy, _METHOD)
    return kind is Policy or (kind is _defining_class(policy, "estimator") and policy.estimator is not None)


def _add_estimates(raw: RawBatch) -> None:
    """Add advantages to the batch, if the policy adds some."""
    policy, batch, ends = raw.rows.policy, raw.batch, np.zeros(raw.batch.count, np.bool_)
    estimator: Estimator | None = getattr(policy, "estimator", None)
    if estimator is None:
        return
    ends[raw.starts[1:] - 1] = ends[-1] = True
    open_ends = ends & ~batch[ColumnNames.TERMINATEDS]
    values = batch[ColumnNames.VF_PREDS] if estimator.use_critic else None
    after = values_after(values, ends, open_ends, 0 if values is None else _open_values(policy, batch, open_ends))
    if estimator.use_critic:
        batch[ColumnNames.VALUES_BOOTSTRAPPED] = after
    estimates = estimate(batch[ColumnNames.REWARDS], values, after, ends, estimator)
    batch[ColumnNames.ADVANTAGES], batch[ColumnNames.VALUE_TARGETS] = estimates


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


Complete: TypeAlias = Callable[[dict[str, SampleBatch], int], SampleBatch | MultiAgentBatch]
"""Makes the batch to hand out of batches by policy id, and the number of their env steps."""

# Callbacks that take episodes: before the reset, before the first action, after each step, at the end.
_EVENTS = ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end")

# Steps that there is room for at once, where their number is not known.
ROOM = 64

# Steps after which an episode is warned of, if only whole ones are handed out.
LONG_EPISODE = 5_000


class Sampler:
    """Collects from B envs. Used by one thread at a time.

    Args:
        envs: of a worker that has its policies.
        complete: makes the batch to hand out.

    Attributes:
        counts: numbers of steps and episodes.
        agents: the loop's actor.

    Raises:
        ValueError: several policies for envs with one agent, a larger `num_envs_per_env_runner` than the vector env has
            sub-envs, or a policy that requires a view that is not served.
    """

    def __init__(self, envs: Any, complete: Complete) -> None:
        self.counts, self._envs, self._worker, self._complete = envs.counts, envs, envs.worker, complete
        policy_ids = sorted(envs.worker.policy_map)
        if len(policy_ids) > 1 and not envs.has_agents:
            raise ValueError(f"policies {policy_ids} for {envs.first}, which has one agent; give one policy")
        self._failures, self._timer = envs.failures, envs.timer
        self._slots = Slots(envs.worker, envs.num_envs)
        self._lone_rows = None if envs.has_agents else self._slots.rows_of(policy_ids[0])
        self._quota = Quota.of(envs)
        kind: type[LoneAgents | ManyAgents] = ManyAgents if envs.has_agents else LoneAgents
        self.agents = kind(envs.host, self._slots, envs.timer, partial(self._call, "on_episode_start"))
        self._maker = BatchMaker(envs.worker, self._slots, envs.unroll_ids)
        listeners = {event: listener(envs.worker.callbacks, event) for event in _EVENTS}
        self._listeners = {event: callback for event, callback in listeners.items() if callback is not None}
        self._state = LoopState([], list(range(envs.num_envs)))
        self._rules = Rules(StepLimit(envs.host.spec), self._begin, envs.failures)
        self._ended: list[Episode] = []
        self._warned: set[int] = set()

    def sample(self, explore: bool | None, *, force_reset: bool) -> SampleBatch | MultiAgentBatch:
        """Collect until there is enough for a batch by the present config, and return it.

        Args:
            explore: whether actions are sampled; None: as the settings of each policy say.
            force_reset: begin new episodes in all envs.

        Raises:
            Exception: what an env, a policy, a filter or a callback raised, as its own type with a note. The next call
                goes on, and hands out the transitions that were made; they are lost only if making their batch fails.
        """
        if self._lone_rows is not None:
            self._lone_rows = self._use_present_policy(self._lone_rows)
        if force_reset:
            self.start_over()
        slots, quota = self._slots, Quota.of(self._envs)
        self._quota = quota
        self._discard_replaced()
        slots.prepare(self._worker.policy_version, explore)
        agents: Any = self.agents
        source = steps(agents, agents, self._state, self._rules)
        try:
            while (cuts := slots.cuts(quota)) is None:
                missing = slots.missing(quota)
                slots.n_steps = ROOM if quota.whole_episodes or quota.by_agents else missing
                try:
                    for _ in range(missing):
                        self._step(source)
                except EnvRaised as raised:
                    self._raise(raised)
                    source = steps(agents, agents, self._state, self._rules)
        finally:  # the next call may have other weights
            for rows in slots.policies.values():
                rows.add_values()
        return self._hand_out(cuts)

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
        self._end()

    def _use_present_policy(self, rows: PolicyRows) -> PolicyRows:
        """Return the rows of the policy that acts in envs with one agent: the worker's first if that one was removed.

        Then running episodes are given up, and transitions that were not handed out are discarded.

        Raises:
            KeyError: the mapping names another policy.
        """
        policies, mapping = self._worker.policy_map, self._worker.policy_mapping_fn
        if policies and policies.get(rows.policy_id) is not rows.policy:
            self.start_over()
            self.discard_waiting()
            self._discard_replaced()
            rows = self._slots.rows_of(next(iter(policies)))
        if mapping is not map_to_default:
            policy_id = with_worker_argument(mapping)(LONE_AGENT, None, worker=self._worker)
            if policy_id != rows.policy_id:
                reason = f"in an env with one agent {rows.policy_id!r} acts"
                raise KeyError(f"policy_mapping_fn gave {policy_id!r} for agent {LONE_AGENT!r}; {reason}")
        return rows

    def _discard_replaced(self) -> None:
        """Discard the episodes of agents whose policy id belongs to another policy now."""
        policies, slots = self._worker.policy_map, self._slots
        for number, rows in [*slots.policies.items()]:
            if policies.get(rows.policy_id, rows.policy) is not rows.policy:
                agent_envs = {e.env_id for e in slots.episodes if e for other, _ in e.slots.values() if other is rows}
                for env in agent_envs.difference(self._state.ended_envs):
                    self.counts["env_steps_discarded"] += slots.discard(env)
                self._state.ended_envs = sorted({*self._state.ended_envs, *agent_envs})
                slots.remove(lambda labels: np.ones(len(labels), np.bool_), [slots.policies.pop(number)])

    def _step(self, source: Iterator[Step]) -> None:
        """Make a step of all envs, and record it before anything is raised."""
        failures = self._failures
        self._timer.step()
        try:
            self._write(next(source))
        finally:
            while failures.errors:
                env, error = failures.errors.pop(0)
                self.counts["episodes_faulty"] += 1
                self._envs.log.add([RolloutMetrics(episode_faulty=True, env_index=env, error=repr(error))])
                self._call("on_episode_end", env, error)
        if failures.fatal is not None:
            raise failures.fatal

    def _raise(self, raised: EnvRaised) -> None:
        """Raise the exception of an env, with a note of its place, unless exceptions are allowed."""
        failures, env, episode = self._failures, raised.env, self._slots.episodes[raised.env]
        place = f"step {episode.length} of its episode, counted from 0" if episode.has_begun else "a reset"
        is_fatal = failures.take_fatal() is not None
        if failures.episodes_lost:
            self.start_over()
        if is_fatal:
            raised.cause.add_note(f"raised by sub-env {env} (last seed {self._envs.host.seed_of(env)}) in {place}")
            raise raised.cause from raised.cause.__cause__

    def _write(self, step: Step) -> None:
        """Record a step, then call the callbacks."""
        slots, ended = self._slots, step.ends.envs.tolist()
        self.agents.settle(step)
        slots.clocks += 1
        for env in step.void:
            slots.clocks[env] -= 1
            if env in ended:
                ended.remove(env)
                self._give_up(env)
        if self._quota.whole_episodes:
            self._warn_of_long()
        try:
            for env in range(len(slots.episodes)) if "on_episode_step" in self._listeners else ():
                if env not in step.void:
                    self._call("on_episode_step", env)
        finally:
            for env in ended:
                slots.ended_until[env] = slots.clocks[env]
                slots.episodes[env].keep()
                self._ended.append(slots.episodes[env])
            if ended and self._maker.listener is None:  # otherwise after their rows were post-processed
                self._end(waits=False)

    def _end(self, *, waits: bool = True) -> None:
        """Call `on_episode_end` of ended episodes and report them; `waits` leaves those with waiting transitions."""
        perf_stats, waiting = self._timer.get(), [e for e in self._ended if waits and e.active_agent_steps]
        ended, self._ended = [episode for episode in self._ended if episode not in waiting], waiting
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
                advice = "limit episodes (gymnasium's TimeLimit), or set batch_mode='truncate_episodes'"
                duration = f"has lasted {lengths[env]:,} steps, and is handed out only when it ends"
                warn(f"the episode of sub-env {env} {duration}; {advice}")

    def _begin(self, envs: Sequence[int]) -> tuple[Sequence[int], None]:
        """Create the next episodes in these envs, unless they are created and wait for their reset."""
        worker, slots, lone_rows = self._worker, self._slots, self._lone_rows
        for env in envs:
            running = slots.episodes[env]
            if running is None or running.has_begun:
                mapping = with_worker_argument(worker.policy_mapping_fn) if lone_rows is None else lone_rows.policy_of
                number = next(self._envs.episode_ids)
                episode = Episode(number, env, slots, worker, worker.policy_map, mapping)
                self.agents.enter(env, episode)
                self._call("on_episode_created", env, episode)
        return envs, None

    def _call(self, event: str, env: int, episode: Any = None) -> None:
        """Call the listener to an event, with the running episode of an env, or with another one or an exception."""
        if event in self._listeners:
            worker, envs = self._worker, self._envs.envs
            self._listeners[event](
                episode=self._slots.episodes[env] if episode is None else episode,
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

    def _hand_out(self, cuts: Array) -> SampleBatch | MultiAgentBatch:
        """Return the batch of all transitions before the cuts."""
        slots = self._slots
        parts, env_steps = slots.hand_out(cuts)
        try:
            batches = self._maker.make(parts)
            self._end()
            n_rows = sum(rows.count for rows in batches.values())
            batch = self._complete(batches, env_steps)
        except BaseException:
            self.counts["env_steps_discarded"] += env_steps
            raise
        finally:
            slots.make_room()
        self.counts["env_steps_sampled"] += env_steps
        self.counts["agent_steps_sampled"] += n_rows
        return batch
