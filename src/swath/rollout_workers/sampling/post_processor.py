"""What a policy makes of its own rows: chunk by chunk, shown to listeners, or of all at once where that is the same.

chunk ─▶ policy.postprocess_trajectory ─▶ listeners ─▶ its rows in the batch
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from swath.rollout.spaces import Array
from swath.rollout_workers.batches.names import STATE_IN, STATE_OUT, ColumnNames, is_state_in
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.callbacks import Listener
from swath.rollout_workers.nests import map_nest
from swath.rollout_workers.policy import Policy
from swath.rollout_workers.postprocessing import Chunks, Estimator, estimate

Original: TypeAlias = tuple[str, Any, SampleBatch]
"""Policy id, policy, and its rows before they are post-processed."""

Originals: TypeAlias = Mapping[Any, Original]
"""By agent, of one episode."""

_METHOD = "postprocess_trajectory"
_SHIPPED = "swath.rollout_workers.policies."


@dataclass(frozen=True)
class Chunk:
    """The rows of one agent in one episode that one version of its policy made.

    Attributes:
        rows: the rows.
        policy_id: whose they are.
        policy: that policy.
        agent: who acted.
        episode: for listeners, and policies that look at it.
    """

    rows: SampleBatch
    policy_id: str
    policy: Any
    agent: Any
    episode: Any


@dataclass(frozen=True)
class PostProcessor:
    """Has policies post-process their chunks.

    Attributes:
        listeners: called with each chunk.
        worker: told to them.
        policies: by id, told to them.
    """

    listeners: Sequence[Listener]
    worker: Any
    policies: Mapping[str, Any]

    def is_chunk_by_chunk(self, policy: Any) -> bool:
        """Whether the chunks of a policy are to be looked at one by one."""
        return bool(self.listeners) or (_overrides(policy) and estimator_of(policy) is None)

    def process(self, chunk: Chunk, others: Originals) -> SampleBatch:
        """What is made of a chunk.

        Args:
            chunk: as it was made.
            others: what the other agents made in the episode.

        Raises:
            TypeError: the policy returned something else than a batch.
            Exception: what the policy or a listener raised.
        """
        made = chunk.rows
        if _overrides(chunk.policy):
            made = chunk.policy.postprocess_trajectory(chunk.rows, dict(others), chunk.episode)
        if not isinstance(made, SampleBatch):
            raise TypeError(f"{type(chunk.policy).__name__}.{_METHOD} returned {made!r}; it must return the batch")
        for listener in self.listeners:
            listener(
                worker=self.worker,
                env_runner=self.worker,
                episode=chunk.episode,
                agent_id=chunk.agent,
                policy_id=chunk.policy_id,
                policies=self.policies,
                postprocessed_batch=made,
                original_batches={**others, chunk.agent: (chunk.policy_id, chunk.policy, chunk.rows)},
            )
        return made


def estimator_of(policy: Any) -> Estimator | None:
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


def as_learnt_from(policy: Any, batch: SampleBatch, lengths: Sequence[int]) -> SampleBatch:
    """The batch as a policy learns from it: chunks of these lengths, in sequences if it is recurrent."""
    if not policy.is_recurrent() or not batch.count:
        return batch
    return in_sequences(batch, lengths, policy.config["model"]["max_seq_len"])


def in_sequences(batch: SampleBatch, lengths: Sequence[int], most: int) -> SampleBatch:
    """The batch with `seq_lens`, and one row per sequence in `state_in_…`.

    Args:
        batch: chunks, one behind the other, with one row per transition in `state_in_…`.
        lengths: rows of each chunk.
        most: rows of a sequence.
    """
    seq_lens = [min(most, length - begin) for length in lengths for begin in range(0, length, most)]
    first = np.cumsum([0, *seq_lens[:-1]])
    columns = {
        name: map_nest(lambda leaf: leaf[first], column) if is_state_in(name) else column
        for name, column in batch.items()
    }
    columns[ColumnNames.SEQ_LENS] = np.array(seq_lens, dtype=np.int32)
    return SampleBatch(columns, _max_seq_len=most, _num_grad_updates=batch.num_grad_updates)


def add_estimates(policy: Any, batch: SampleBatch, starts: Array, estimator: Estimator) -> None:
    """Write `advantages` and `value_targets`; with a critic `values_bootstrapped`, for which it is asked once.

    Args:
        policy: whose `compute_values` are the critic's.
        batch: chunks, one behind the other.
        starts: their first rows.
        estimator: which formulas.
    """
    terminated = batch[ColumnNames.TERMINATEDS]
    ends = np.zeros(len(terminated), dtype=np.bool_)
    ends[starts[1:] - 1] = ends[-1] = True
    values = batch[ColumnNames.VF_PREDS] if estimator.use_critic else None
    chunks = Chunks(batch[ColumnNames.REWARDS], values, terminated, ends)
    after = chunks.bootstrapped(_open_values(policy, batch, chunks))
    estimates = estimate(chunks, after, estimator)
    if estimator.use_critic:
        batch[ColumnNames.VALUES_BOOTSTRAPPED] = after
    batch[ColumnNames.ADVANTAGES] = estimates.advantages
    batch[ColumnNames.VALUE_TARGETS] = estimates.value_targets


def _open_values(policy: Any, batch: SampleBatch, chunks: Chunks) -> Array:
    """The values of the states behind the open ends; 0 without a critic."""
    rows = np.flatnonzero(chunks.open_ends)
    if chunks.values is None or not len(rows):
        return np.zeros(len(rows), dtype=np.float32)
    columns = {ColumnNames.OBS: batch[ColumnNames.NEXT_OBS]}
    for name in batch:
        if name.startswith(STATE_OUT):
            columns[STATE_IN + name.removeprefix(STATE_OUT)] = batch[name]
    reached = {name: map_nest(lambda leaf: leaf[rows], column) for name, column in columns.items()}
    values = policy.compute_values(reached)
    return np.asarray(values, dtype=np.float32).reshape(-1)
