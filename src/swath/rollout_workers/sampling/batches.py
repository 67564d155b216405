"""From transitions to batches: a policy's rows by sub-env, episode, agent and time, in chunks of one version each.

A column is one gather of rows. Then chunks are numbered, and post-processed: one by one where somebody looks at them,
else all at once.

    chunk ─▶ policy.postprocess_trajectory ─▶ on_postprocess_trajectory ─▶ its rows in the batch
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from swath.rollout.spaces import Array
from swath.rollout_workers.batches.names import STATE_IN, STATE_OUT, ColumnNames, is_state_in
from swath.rollout_workers.batches.sample_batch import SampleBatch, concat
from swath.rollout_workers.callbacks import listener
from swath.rollout_workers.episode import Episode
from swath.rollout_workers.nests import map_nest, object_array
from swath.rollout_workers.policy import Policy
from swath.rollout_workers.postprocessing import Estimator, estimate, values_after
from swath.rollout_workers.sampling.policy_rows import IF_WANTED, PolicyRows, as_column
from swath.rollout_workers.sampling.slots import Slots, records_at

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
    """Transitions of one policy, in order, and the batch that is made of them.

    Attributes:
        of: whose they are.
        records: the transitions.
        starts: the first of each chunk.
        batch: not post-processed yet.
    """

    of: PolicyRows
    records: Array
    starts: Array
    batch: SampleBatch


class BatchMaker:
    """Makes batches of transitions.

    Args:
        worker: whose policies post-process their rows.
        slots: where the transitions are from.
        unrolls: numbers of chunks.

    Attributes:
        listener: called with each chunk; None if nobody listens.
    """

    def __init__(self, worker: Any, slots: Slots, unrolls: Iterator[int]) -> None:
        self._worker, self._slots, self._unrolls = worker, slots, unrolls
        self.listener = listener(worker.callbacks, "on_postprocess_trajectory")

    def make(self, transitions: Array) -> dict[str, SampleBatch]:
        """The batches by policy id; a policy of which no row is left has none.

        Raises:
            TypeError: a policy's `postprocess_trajectory` returned something else than a batch.
            Exception: what a policy or a listener raised.
        """
        parts = [
            part
            for number, rows in self._slots.policies.items()
            if (part := self._raw(rows, records_at(transitions, transitions["policy"] == number))) is not None
        ]
        at_once = [part for part in parts if self.listener is None and _adds_by_fragments(part.of.policy)]
        originals = self._originals(parts) if len(at_once) < len(parts) else {}
        made = {}
        for part in parts:
            policy = part.of.policy
            if part in at_once:
                whole, lengths = _estimated(part), np.diff(part.starts, append=len(part.records)).tolist()
            else:
                chunks = [*self._chunks(part, originals)]
                whole, lengths = concat(chunks), [chunk.count for chunk in chunks]
            if whole.count:
                made[part.of.policy_id] = _as_learnt_from(policy, whole, lengths)
        return made

    def _raw(self, policy: PolicyRows, own: Array) -> RawBatch | None:
        """Those of a policy, without the chunks whose last info says that they are not to be trained on."""
        records = records_at(own, np.lexsort((own["agent"], own["episode"], own["env"])))  # in time already
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
        plain = _ALWAYS | {name: field for name, field in IF_WANTED.items() if name in wanted}
        columns = {
            ColumnNames.OBS: policy.observed(records["acted"]),
            ColumnNames.NEXT_OBS: policy.observed(records["row"]),
            **policy.answered(records["answer"]),
            **policy.states(before),
            ColumnNames.T: records["clock"] - records["start"],
            **{name: as_column(records[field]) for name, field in plain.items()},
        }
        if ColumnNames.PREV_ACTIONS in wanted:
            columns[ColumnNames.PREV_ACTIONS] = policy.after(before, ColumnNames.ACTIONS)
        if ColumnNames.INFOS in wanted:
            columns[ColumnNames.INFOS] = object_array(policy.infos_at(records["row"]))
        if ColumnNames.AGENT_ID in wanted:
            columns[ColumnNames.AGENT_ID] = object_array([self._whose(record)[1] for record in records])
        return columns

    def _chunks(self, part: RawBatch, originals: Mapping[int, Originals]) -> Iterator[SampleBatch]:
        """The chunks, each post-processed for itself."""
        policy_id, policy, worker = part.of.policy_id, part.of.policy, self._worker
        for start, stop in pairwise([*part.starts.tolist(), len(part.records)]):
            episode, agent = self._whose(part.records[start])
            chunk = processed = part.batch[start:stop]
            others = {other: each for other, each in originals[episode.episode_id].items() if other != agent}
            if _definer(policy, _METHOD) is not Policy:
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
        """By episode, what each agent made in it, whatever versions acted."""
        found: dict[int, Originals] = {}
        for part in parts:
            for start, stop in pairwise([*_starts(part.records, _CHUNK[:2]).tolist(), len(part.records)]):
                episode, agent = self._whose(part.records[start])
                made = part.of.policy_id, part.of.policy, part.batch[start:stop]
                found.setdefault(episode.episode_id, {})[agent] = made
        return found

    def _whose(self, record: Any) -> tuple[Episode, Any]:
        """The episode and the agent of a transition."""
        episode = self._slots.known[int(record["episode"])]
        return episode, episode.get_agents()[record["agent"]]


def _starts(records: Array, fields: Sequence[str]) -> Array:
    """Where one of these fields changes, the first included."""
    changes = np.logical_or.reduce([records[name][1:] != records[name][:-1] for name in fields])
    return np.flatnonzero(np.append(True, changes)[: len(records)])


def _definer(policy: Any, name: str) -> type | None:
    """The class whose method or property of this name it is."""
    return next((kind for kind in type(policy).__mro__ if name in vars(kind)), None)


def _adds_by_fragments(policy: Any) -> bool:
    """Whether what a policy adds to chunks, if anything, is said by the `estimator` of the same class."""
    by = _definer(policy, _METHOD)
    return by is Policy or (by is _definer(policy, "estimator") and policy.estimator is not None)


def _estimated(part: RawBatch) -> SampleBatch:
    """The batch, with advantages if the policy adds some."""
    policy, batch, ends = part.of.policy, part.batch, np.zeros(part.batch.count, np.bool_)
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
    """The values of the states behind these rows, for which the critic is asked once."""
    if not open_ends.any():
        return 0
    columns = {ColumnNames.OBS: batch[ColumnNames.NEXT_OBS]}
    columns |= {STATE_IN + name.removeprefix(STATE_OUT): batch[name] for name in batch if name.startswith(STATE_OUT)}
    reached = {name: map_nest(lambda leaf: leaf[open_ends], column) for name, column in columns.items()}
    return np.asarray(policy.compute_values(reached), dtype=np.float32).reshape(-1)


def _as_learnt_from(policy: Any, batch: SampleBatch, lengths: Sequence[int]) -> SampleBatch:
    """The batch of chunks of these lengths; of a recurrent policy with `seq_lens`, and a row of states per sequence."""
    if not policy.is_recurrent():
        return batch
    most = policy.config["model"]["max_seq_len"]
    seq_lens = [min(most, length - begin) for length in lengths for begin in range(0, length, most)]
    first = np.cumsum([0, *seq_lens[:-1]])
    columns = {
        name: map_nest(lambda leaf: leaf[first], column) if is_state_in(name) else column
        for name, column in batch.items()
    }
    columns[ColumnNames.SEQ_LENS] = np.array(seq_lens, dtype=np.int32)
    return SampleBatch(columns, _max_seq_len=most, _num_grad_updates=batch.num_grad_updates)
