"""From transitions to batches: a policy's rows by sub-env, episode, agent and time, in chunks of one version each.

A column is one gather of rows. Then chunks are numbered, and post-processed: one by one where somebody looks at them,
else all at once.

    chunk ─▶ policy.postprocess_trajectory ─▶ on_postprocess_trajectory ─▶ its rows in the batch
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from swath.rollout.spaces import Array
from swath.rollout_workers.batches.names import STATE_IN, STATE_OUT, ColumnNames, is_state_in
from swath.rollout_workers.batches.sample_batch import SampleBatch, concat_samples
from swath.rollout_workers.callbacks import listeners
from swath.rollout_workers.episode import Episode, records_at
from swath.rollout_workers.nests import map_nest, object_array
from swath.rollout_workers.policy import Policy
from swath.rollout_workers.postprocessing import Estimator, estimate, values_after
from swath.rollout_workers.sampling.policy_rows import PolicyRows

Info = Mapping[str, Any]
Original: TypeAlias = tuple[str, Any, SampleBatch]
"""Policy id, policy, and its rows before they are post-processed."""

_METHOD = "postprocess_trajectory"
_SHIPPED = "swath.rollout_workers.policies."
_ALWAYS = {
    ColumnNames.REWARDS: "reward",
    ColumnNames.TERMINATEDS: "terminated",
    ColumnNames.TRUNCATEDS: "truncated",
    ColumnNames.T: "t",
    ColumnNames.EPS_ID: "episode",
    ColumnNames.AGENT_INDEX: "agent",
    ColumnNames.POLICY_VERSION: "version",
}
_IF_WANTED = {ColumnNames.PREV_REWARDS: "paid", ColumnNames.ENV_ID: "env"}
"""Columns that are a field of the transitions."""


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
        episodes: by id, those of which transitions are here, if anybody looks at them.
        agent: the one of an episode that is at a place in the order of appearance.
        infos: what the envs said to the agents of these transitions when they ended.
        unrolls: numbers of chunks.

    Attributes:
        listeners: called with each chunk.
    """

    def __init__(
        self,
        worker: Any,
        episodes: Mapping[int, Episode],
        agent: Callable[[int, int], Any],
        infos: Callable[[Array], list[Info]],
        unrolls: Iterator[int],
    ) -> None:
        self._worker, self._episodes, self._infos, self._unrolls = worker, episodes, infos, unrolls
        self._agent = agent
        self.listeners = listeners(worker.callbacks, "on_postprocess_trajectory")

    def is_chunk_by_chunk(self, policy: Any) -> bool:
        """Whether the chunks of a policy are to be looked at one by one."""
        return bool(self.listeners) or (_overrides(policy) and _estimator_of(policy) is None)

    def make(self, policies: Sequence[PolicyRows], transitions: Array) -> dict[str, SampleBatch]:
        """The batches by policy id; a policy of which no row is left has none.

        Raises:
            TypeError: a policy's `postprocess_trajectory` returned something else than a batch.
            Exception: what a policy or a listener raised.
        """
        parts = [(each, transitions) for each in policies]
        if len(policies) > 1:
            whose = transitions["policy"]
            parts = [(each, records_at(transitions, whose == each.number)) for each in policies]
        taken = [rows for policy, own in parts if (rows := self._rows(policy, own)) is not None]
        originals = self._originals(taken) if any(self.is_chunk_by_chunk(rows.of.policy) for rows in taken) else {}
        made = {}
        for rows in taken:
            one_by_one = self.is_chunk_by_chunk(rows.of.policy)
            whole, lengths = self._one_by_one(rows, originals) if one_by_one else _at_once(rows)
            if whole.count:
                made[rows.of.policy_id] = _as_learnt_from(rows.of.policy, whole, lengths)
        return made

    def _rows(self, policy: PolicyRows, own: Array) -> RawBatch | None:
        """Those of a policy, without the chunks whose last info says that they are not to be trained on."""
        records = records_at(own, np.lexsort((own["agent"], own["episode"], own["env"])))  # in time already
        if not len(records):
            return None
        changes = [records[name][1:] != records[name][:-1] for name in ("episode", "agent", "version")]
        starts = np.concatenate([[0], np.flatnonzero(np.logical_or.reduce(changes)) + 1])
        lengths = np.diff(starts, append=len(records))
        last = self._infos(records_at(records, starts + lengths - 1))
        keep = np.array([bool(info.get("training_enabled", True)) for info in last], np.bool_)
        if not keep.any():
            return None
        if not keep.all():
            records, lengths = records[np.repeat(keep, lengths)], lengths[keep]
            starts = np.cumsum(lengths) - lengths
        columns = self._columns(policy, records)
        columns[ColumnNames.UNROLL_ID] = np.repeat([next(self._unrolls) for _ in starts], lengths)
        return RawBatch(policy, records, starts, SampleBatch(columns, _num_grad_updates=policy.policy.num_grad_updates))

    def _columns(self, policy: PolicyRows, records: Array) -> dict[str, Any]:
        kept, before = policy.wanted.batch, records["before"]
        plain = _ALWAYS | {name: field for name, field in _IF_WANTED.items() if name in kept}
        columns = {
            ColumnNames.OBS: policy.observed(records["acted"]),
            ColumnNames.NEXT_OBS: policy.observed(records["row"]),
            **policy.answered(records["acted"]),
            **policy.states(before),
            **{name: np.ascontiguousarray(records[field]) for name, field in plain.items()},
        }
        if ColumnNames.PREV_ACTIONS in kept:
            columns[ColumnNames.PREV_ACTIONS] = policy.actions_at(before)
        if ColumnNames.INFOS in kept:
            columns[ColumnNames.INFOS] = object_array(self._infos(records))
        if ColumnNames.AGENT_ID in kept:
            columns[ColumnNames.AGENT_ID] = object_array([self._agent(*who) for who in _whose(records)])
        return columns

    def _one_by_one(
        self, rows: RawBatch, originals: Mapping[int, Mapping[Any, Original]]
    ) -> tuple[SampleBatch, list[int]]:
        """The batch of chunks that are post-processed each for itself, and how long these are."""
        policy_id, policy, made, worker = rows.of.policy_id, rows.of.policy, [], self._worker
        bounds = pairwise([*rows.starts.tolist(), len(rows.records)])
        for who, (start, stop) in zip(_whose(records_at(rows.records, rows.starts)), bounds, strict=True):
            episode, agent = self._episodes[who[0]], self._agent(*who)
            chunk = processed = rows.batch[start:stop]
            others = {other: original for other, original in originals[who[0]].items() if other != agent}
            if _overrides(policy):
                processed = policy.postprocess_trajectory(chunk, dict(others), episode)
            if not isinstance(processed, SampleBatch):
                raise TypeError(f"{type(policy).__name__}.{_METHOD} returned {processed!r}; it must return the batch")
            for listener in self.listeners:
                listener(
                    worker=worker,
                    env_runner=worker,
                    episode=episode,
                    agent_id=agent,
                    policy_id=policy_id,
                    policies=worker.policy_map,
                    postprocessed_batch=processed,
                    original_batches={**others, agent: (policy_id, policy, chunk)},
                )
            made.append(processed)
        whole = concat_samples(made)
        assert isinstance(whole, SampleBatch)
        return whole, [chunk.count for chunk in made]

    def _originals(self, taken: Sequence[RawBatch]) -> dict[int, dict[Any, Original]]:
        """What each agent made in each episode, whatever versions acted."""
        found: dict[int, dict[Any, Original]] = {}
        for rows in taken:
            spans: dict[tuple[int, int], tuple[int, int]] = {}
            for row, who in enumerate(_whose(rows.records)):
                spans[who] = (spans.get(who, (row, row))[0], row + 1)
            for who, (start, stop) in spans.items():
                of_agent = (rows.of.policy_id, rows.of.policy, rows.batch[start:stop])
                found.setdefault(who[0], {})[self._agent(*who)] = of_agent
        return found


def _estimator_of(policy: Any) -> Estimator | None:
    """The advantages that a policy adds, if it is one that is shipped and adds nothing else."""
    shipped = _definer(policy).__module__.startswith(_SHIPPED)
    found: Estimator | None = getattr(policy, "estimator", None)
    return found if shipped and _overrides(policy) else None


def _overrides(policy: Any) -> bool:
    """Whether a policy post-processes its rows."""
    return _definer(policy) is not Policy


def _definer(policy: Any) -> type:
    """The class whose `postprocess_trajectory` it is."""
    return next(kind for kind in type(policy).__mro__ if _METHOD in vars(kind))


def _whose(records: Array) -> list[tuple[int, int]]:
    """The episode and the place of the agent of each transition."""
    return list(zip(records["episode"].tolist(), records["agent"].tolist(), strict=True))


def _at_once(rows: RawBatch) -> tuple[SampleBatch, list[int]]:
    """The batch, with advantages if the policy adds some, and how long its chunks are."""
    policy, batch, starts, estimator = rows.of.policy, rows.batch, rows.starts, _estimator_of(rows.of.policy)
    if estimator is not None:
        ends = np.zeros(batch.count, dtype=np.bool_)
        ends[starts[1:] - 1] = ends[-1] = True
        open_ends = ends & ~batch[ColumnNames.TERMINATEDS]
        values = batch[ColumnNames.VF_PREDS] if estimator.use_critic else None
        open_values = 0 if values is None else _open_values(policy, batch, np.flatnonzero(open_ends))
        after = values_after(values, ends, open_ends, open_values)
        if estimator.use_critic:
            batch[ColumnNames.VALUES_BOOTSTRAPPED] = after
        estimates = estimate(batch[ColumnNames.REWARDS], values, after, ends, estimator)
        batch[ColumnNames.ADVANTAGES], batch[ColumnNames.VALUE_TARGETS] = estimates
    return batch, np.diff(starts, append=len(rows.records)).tolist()


def _open_values(policy: Any, batch: SampleBatch, rows: Array) -> Any:
    """The values of the states behind these rows, for which the critic is asked once."""
    if not len(rows):
        return 0
    columns = {ColumnNames.OBS: batch[ColumnNames.NEXT_OBS]}
    for name in batch:
        if name.startswith(STATE_OUT):
            columns[STATE_IN + name.removeprefix(STATE_OUT)] = batch[name]
    reached = {name: map_nest(lambda leaf: leaf[rows], column) for name, column in columns.items()}
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
