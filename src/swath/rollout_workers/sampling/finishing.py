"""What is done with rows before they are a batch: numbered by chunk, post-processed, put into sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from swath.rollout_workers.advantages import Estimator
from swath.rollout_workers.batches.joining import concat_samples
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.callbacks import Listener
from swath.rollout_workers.policy import Policy
from swath.rollout_workers.sampling.asking import Wants
from swath.rollout_workers.sampling.chunks import UnrollIds, is_trained, number_chunks
from swath.rollout_workers.sampling.columns import Taken, columns_of
from swath.rollout_workers.sampling.estimates import add_estimates
from swath.rollout_workers.sampling.sequences import in_sequences
from swath.rollout_workers.tallies import LONE_AGENT

_METHOD = "postprocess_trajectory"
_SHIPPED = "swath.rollout_workers.policies."


@dataclass(frozen=True)
class Finisher:
    """Makes batches of rows.

    Attributes:
        policy_id: whose rows they are.
        policy: that policy.
        wants: which optional columns its batches have.
        template: a nest of the structure of observations.
        unrolls: numbers chunks.
        listeners: to be called with each chunk.
        worker: passed to them.
        episode: by trajectory id, where chunks are looked at one by one.
    """

    policy_id: str
    policy: Any
    wants: Wants
    template: Any
    unrolls: UnrollIds
    listeners: Sequence[Listener] = ()
    worker: Any = None
    episode: Callable[[int], Any] | None = None

    def finish(self, taken: Taken) -> SampleBatch:
        """The batch of these rows, of which there is at least one."""
        columns = columns_of(taken, self.template, self.wants.kept)
        starts = number_chunks(columns, self.unrolls)
        batch = SampleBatch(columns, _num_grad_updates=self.policy.num_grad_updates)
        trained = [is_trained(taken.info_at(int(stop) - 1)) for stop in (*starts[1:], taken.count)]
        if chunk_by_chunk(self.policy, self.listeners) or not all(trained):
            return self._one_by_one(batch, [int(start) for start in starts], trained)
        estimator = estimator_of(self.policy)
        if estimator is not None:
            add_estimates(self.policy, batch, starts, estimator)
        lengths = [int(stop - start) for start, stop in pairwise([*starts, taken.count])]
        return self._in_sequences(batch, lengths)

    def _one_by_one(self, batch: SampleBatch, starts: list[int], trained: Sequence[bool]) -> SampleBatch:
        bounds = pairwise([*starts, batch.count])
        chunks = [self._processed(batch[start:stop]) for (start, stop), use in zip(bounds, trained, strict=True) if use]
        if not chunks:
            return SampleBatch()
        whole = concat_samples(chunks)
        assert isinstance(whole, SampleBatch)
        return self._in_sequences(whole, [chunk.count for chunk in chunks])

    def _processed(self, chunk: SampleBatch) -> SampleBatch:
        episode = None if self.episode is None else self.episode(int(chunk[ColumnNames.EPS_ID][0]))
        made = self.policy.postprocess_trajectory(chunk, {}, episode) if overrides(self.policy) else chunk
        if not isinstance(made, SampleBatch):
            raise TypeError(f"{type(self.policy).__name__}.{_METHOD} returned {made!r}; it must return the batch")
        originals: Mapping[Any, Any] = {LONE_AGENT: (self.policy_id, self.policy, chunk)}
        for listener in self.listeners:
            listener(
                worker=self.worker,
                env_runner=self.worker,
                episode=episode,
                agent_id=LONE_AGENT,
                policy_id=self.policy_id,
                policies=self.worker.policy_map,
                postprocessed_batch=made,
                original_batches=originals,
            )
        return made

    def _in_sequences(self, batch: SampleBatch, lengths: Sequence[int]) -> SampleBatch:
        if not self.policy.is_recurrent():
            return batch
        return in_sequences(batch, lengths, self.policy.config["model"]["max_seq_len"])


def chunk_by_chunk(policy: Any, listeners: Sequence[Listener]) -> bool:
    """Whether chunks are to be looked at one by one."""
    return bool(listeners) or (overrides(policy) and estimator_of(policy) is None)


def overrides(policy: Any) -> bool:
    """Whether a policy post-processes its rows."""
    return _definer(policy) is not Policy


def estimator_of(policy: Any) -> Estimator | None:
    """The advantages that a policy adds, if it is one that is shipped and adds nothing else."""
    shipped = _definer(policy).__module__.startswith(_SHIPPED)
    found: Estimator | None = getattr(policy, "estimator", None)
    return found if shipped and overrides(policy) else None


def _definer(policy: Any) -> type:
    """The class whose `postprocess_trajectory` it is."""
    return next(kind for kind in type(policy).__mro__ if _METHOD in vars(kind))
